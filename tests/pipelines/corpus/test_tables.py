"""Tables and data sets become documents, and files are read as their names say."""

import json
import time
from collections import Counter
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.errors import UserError
from pipelines.stages.corpus.settings import HuggingFaceDataset, TextFiles
from pipelines.stages.corpus.sources import (
    InputFile,
    Span,
    divide,
    inputs_fingerprint,
    read_span,
    resolve,
)

ROWS = [
    {"text": "First, “quoted” text.", "kind": "a", "n": 1},
    {"text": "Second\nwith a line break.", "kind": "b", "n": 2},
    {"text": None, "kind": "c", "n": 3},
]


def read(source, spans: int = 1) -> tuple[list[tuple[str, str]], Counter[str]]:
    """(label, text) of every document, read in so many spans."""
    tally = Counter()
    found = []
    source, files = resolve(source)
    for file in files:
        edges = [file.num_bytes * index // spans for index in range(spans)]
        for begin, end in zip(edges, [*edges[1:], None], strict=True):
            span = Span(source=0, file=file, begin=begin, end=end)
            found += [(each.label, each.text) for each in read_span(source, span, tally)]
    return found, tally


@pytest.mark.parametrize("spans", [1, 3])
def test_json_lines_give_their_text_and_label(tmp_path, spans):
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps(row) for row in ROWS]
    path.write_text("\n".join([*lines, ""]))
    found, tally = read(TextFiles(paths=(str(path),), label_field="kind"), spans)
    assert found == [("a", ROWS[0]["text"]), ("b", ROWS[1]["text"])]
    assert tally == {"rows without text in 'text'": 1}
    with path.open("a") as file:
        file.write("{broken")
    with pytest.raises(UserError, match=r"the line '\{broken' of .*rows.jsonl is not JSON"):
        read(TextFiles(paths=(str(path),)), spans)


@pytest.mark.parametrize("other", [["a", "b"], 5, {"a": "b"}])
def test_what_is_no_text_is_refused(tmp_path, other):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": other}) + "\n")
    with pytest.raises(UserError, match=r"'text' of .*rows.jsonl holds .* in place of a text"):
        read(TextFiles(paths=(str(path),)), 1)


def test_the_same_bytes_parsed_otherwise_are_another_input(tmp_path):
    for name in ("a.csv", "a.tsv", "a.csv.gz"):
        (tmp_path / "x" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "x" / name).write_bytes(b"text,label\nx,y\n")

    def name(file: str) -> str:
        source = TextFiles(paths=(str(tmp_path / "x" / file),), name="same")
        return inputs_fingerprint([(0, found) for found in resolve(source)[1]])

    assert len({name("a.csv"), name("a.tsv"), name("a.csv.gz")}) == 3


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("id,body\n1,one\n")
    with pytest.raises(
        UserError, match=r"rows\.csv has no column 'text', only id, body; .*--corpus-column"
    ):
        read(TextFiles(paths=(str(path),)))
    parquet = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"body": ["one"]}), parquet)
    with pytest.raises(UserError, match=r"rows\.parquet has no column 'text', only body"):
        read(TextFiles(paths=(str(parquet),)))


@pytest.mark.parametrize("spans", [1, 2, 7])
def test_parquet_row_groups_are_divided_without_loss(tmp_path, spans):
    path = tmp_path / "rows.parquet"
    texts = [f"Text number {number}." for number in range(100)]
    pq.write_table(pa.table({"text": texts, "kind": ["k"] * 100}), path, row_group_size=9)
    found, _ = read(TextFiles(paths=(str(path),), label_field="kind"), spans)
    assert found == [("k", text) for text in texts]


def test_a_label_that_holds_nothing_is_none(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("text,kind\none,\ntwo,  \nthree, spam\nfour,spam\n")
    found, _ = read(TextFiles(paths=(str(path),), label_field="kind"))
    assert [label for label, _ in found] == ["rows", "rows", "spam", "spam"]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["one", "two"], "kind": [float("nan"), None]}), path)
    found, _ = read(TextFiles(paths=(str(path),), label_field="kind"))
    assert [label for label, _ in found] == ["rows", "rows"]


def test_bytes_of_another_encoding_as_a_label_are_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    source = TextFiles(paths=(str(path),), label_field="kind")
    pq.write_table(pa.table({"text": ["один"], "kind": ["вид".encode()]}), path)
    assert read(source)[0] == [("вид", "один")]
    pq.write_table(pa.table({"text": ["один"], "kind": ["вид".encode("cp1251")]}), path)
    with pytest.raises(UserError, match=r"a label of .*rows\.parquet is not UTF-8"):
        read(source)


def test_a_local_copy_of_a_hugging_face_data_set_is_read(tmp_path):
    rows = datasets.Dataset.from_list([{"text": "one", "lang": "x"}, {"text": "two", "lang": "y"}])
    rows.save_to_disk(str(tmp_path / "copy"))
    datasets.DatasetDict({"train": rows}).save_to_disk(str(tmp_path / "dict"))
    for name in ("copy", "dict"):
        source = HuggingFaceDataset(dataset=str(tmp_path / name), label_field="lang")
        assert read(source)[0] == [("x", "one"), ("y", "two")]
    with pytest.raises(UserError, match="no split test"):
        read(HuggingFaceDataset(dataset=str(tmp_path / "dict"), split="test"))


def test_a_data_set_in_a_relative_folder_is_found_by_workers_in_another_one(tmp_path, monkeypatch):
    for name in ("mine", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "mine" / "train.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    monkeypatch.chdir(tmp_path)
    source, (file,) = resolve(HuggingFaceDataset(dataset="mine"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = read_span(source, Span(source=0, file=file), Counter())
    assert [(each.label, each.text) for each in found] == [("mine", "one"), ("mine", "two")]


def test_parts_depend_on_the_inputs_alone_and_never_mix_sources(tmp_path):
    for name, size in (("a", 10), ("b", 250), ("c", 40), ("d", 70)):
        (tmp_path / f"{name}.jsonl").write_text("x" * size)
    files = [
        (number, file)
        for number, source in enumerate(
            [TextFiles(paths=(str(tmp_path),)), TextFiles(paths=(str(tmp_path),), name="again")]
        )
        for file in resolve(source)[1]
    ]
    parts = divide(files, 100)
    assert [part.index for part in parts] == list(range(len(parts)))
    assert all(len({span.source for span in part.spans}) == 1 for part in parts)
    covered = [(span.file.path, span.begin, span.num_bytes) for p in parts for span in p.spans]
    assert sum(size for *_, size in covered) == 2 * 370
    assert max(sum(span.num_bytes for span in part.spans) for part in parts) <= 150
    assert inputs_fingerprint(files) != inputs_fingerprint(files[:4])


def test_twenty_thousand_small_files_are_divided_in_seconds():
    file = InputFile(path="/a", label="a", num_bytes=2_000, digest="0", format="text")
    begin = time.perf_counter()
    parts = divide([(0, file)] * 20_000, 24_000_000)
    assert time.perf_counter() - begin < 20
    assert [len(part.spans) for part in parts] == [12_000, 8_000]


@pytest.mark.parametrize(
    "name",
    ["a.docx", "a.PNG", "a.tar.gz", "a.json", "a.warc.gz", "a.xml.bz2", "hiwiki-1.xml-p1p42.bz2"],
)
def test_what_nothing_reads_is_refused_by_its_name(tmp_path, name):
    (tmp_path / name).write_text("words that could be taken for text\n" * 9)
    with pytest.raises(UserError, match=rf"{name} cannot be read: a corpus takes .*convert it, or"):
        resolve(TextFiles(paths=(str(tmp_path),)))


@pytest.fixture(autouse=True)
def no_hub(monkeypatch, tmp_path):
    """Datasets are read without the network, and their caches stay in the test's folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", Path(tmp_path) / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
