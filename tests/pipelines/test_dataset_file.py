"""Labelled files are read as people write them, and every fault is named."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.compression import zstd

from pipelines.config.errors import UserError
from pipelines.stages.dataset.items import LeftOut, read_labelled
from pipelines.stages.dataset.records import name_of_file
from pipelines.stages.dataset.settings import LabelledFile
from pipelines.tasks.classification import FAMILY

SMS = Path("../shared/data/sms_spam/SMSSpamCollection.tsv")


def _read(path: Path, text: str, **columns: str) -> list[tuple[str, str]]:
    path.write_text(text, encoding="utf-8")
    return _items(path, **columns)


def _items(path: Path, left_out: LeftOut | None = None, **columns: str) -> list[tuple[str, str]]:
    settings = LabelledFile(path=str(path), **columns)
    found = read_labelled(str(path), FAMILY, settings, left_out or LeftOut())
    return [(each.item["text"], each.item["label"]) for each in found]


def test_columns_are_found_by_their_usual_names(tmp_path: Path) -> None:
    rows = _read(tmp_path / "a.csv", 'id,Label,Text\n1,ham,"hello, you"\n2,spam,win\n')
    assert rows == [("hello, you", "ham"), ("win", "spam")]


def test_columns_that_are_not_read_may_have_one_name(tmp_path: Path) -> None:
    rows = _read(tmp_path / "a.csv", "text,note,label,note\none,x,ham,y\ntwo,x,spam,y\n")
    assert rows == [("one", "ham"), ("two", "spam")]


def test_two_columns_need_no_header_and_either_order_is_understood(tmp_path: Path) -> None:
    label_first = _read(tmp_path / "a.tsv", "ham\tone\nspam\ttwo\nham\tthree\n")
    text_first = _read(tmp_path / "b.tsv", "one\tham\ntwo\tspam\nthree\tham\n")
    assert label_first == text_first == [("one", "ham"), ("two", "spam"), ("three", "ham")]


def test_a_header_with_unusual_names_is_not_taken_for_data(tmp_path: Path) -> None:
    rows = _read(tmp_path / "a.tsv", "kind\tsms\nham\tone\nspam\ttwo\nham\tthree\nspam\tx\n")
    assert rows[0] == ("one", "ham")


def test_a_first_row_that_is_taken_for_a_header_is_counted(tmp_path: Path) -> None:
    left_out = LeftOut()
    path = tmp_path / "a.tsv"
    path.write_text("rare\tfirst\nham\tone\nspam\ttwo\nham\tthree\nspam\tx\n")
    assert len(_items(path, left_out)) == 4
    assert left_out.tally.dropped == {"first rows taken for a header": 1}
    path.write_text("ham\tfirst\nham\tone\nspam\ttwo\n")
    assert len(_items(path, left_out)) == 3


def test_named_columns_win(tmp_path: Path) -> None:
    text = "a\tb\tc\n1\tyes\tfine\n2\tno\tbad\n"
    assert _read(tmp_path / "a.tsv", text, text_column="c", label_column="b") == [
        ("fine", "yes"),
        ("bad", "no"),
    ]


def test_quotes_in_tsv_are_ordinary_characters(tmp_path: Path) -> None:
    rows = _read(tmp_path / "a.tsv", 'label\ttext\nham\t"hello\nspam\twin" now\n')
    assert rows == [('"hello', "ham"), ('win" now', "spam")]


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("zst", zstd.compress)])
def test_compressed_jsonl_and_a_byte_order_mark_are_read(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"a.jsonl.{suffix}"
    lines = '\ufeff{"text": "one", "label": 1}\n\n{"text": "two", "label": 0}\n'
    path.write_bytes(compress(lines.encode()))
    rows = _items(path)
    assert rows == [("one", "1"), ("two", "0")]


@pytest.mark.parametrize(
    ("name", "text", "columns", "message"),
    [
        ("a.csv", "", {}, "has no labelled rows"),
        ("a.csv", "x,y,z\n1,2,3\n", {}, "cannot tell which columns .* found x, y, z"),
        ("a.csv", "text,label\na,b\n", {"label_column": "kind"}, "has no column 'kind'"),
        ("a.csv", "label,text,label\na,b,c\n", {}, "has two columns 'label'; rename"),
        (
            "a.tsv",
            "text\tlabel\none\n",
            {},
            "line 2 of .*found 1 fields where the first row has 2",
        ),
        ("a.jsonl", "{'text': 1}\n", {}, "line 1 of .*found no JSON"),
        ("a.jsonl", "[1]\n", {}, "line 1 of .*found no JSON object but"),
        ("a.pdf", "text,label\n", {}, "is not a CSV, TSV, JSONL or Parquet file by its name"),
    ],
)
def test_faults_are_named(
    tmp_path: Path, name: str, text: str, columns: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        _read(tmp_path / name, text, **columns)


@pytest.mark.parametrize("label", ["", "nan", "NaN", "<NA>"])
def test_a_text_without_a_label_is_refused_by_its_line(tmp_path: Path, label: str) -> None:
    with pytest.raises(UserError, match=r"must have a label, found .* in line 3; correct or"):
        _read(tmp_path / "a.csv", f'text,label\nx,a\n"y\nz",{label}\nw,b\n')


@pytest.mark.parametrize("value", ["null", "NaN"])
def test_a_json_label_that_is_none_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(UserError, match="must have a label, found 'none' in line "):
        _read(
            tmp_path / "a.jsonl", f'{{"text": "x", "label": 1}}\n{{"text": "y", "label": {value}}}'
        )


def test_words_that_only_look_empty_are_labels(tmp_path: Path) -> None:
    rows = _read(tmp_path / "a.csv", "text,label\nx,none\ny,NA\nz,null\n")
    assert [label for _, label in rows] == ["none", "NA", "null"]


def test_rows_without_a_text_and_repairs_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("text,label\ncafé,a\n,b\nx,b\n".encode("cp1252"))
    left_out = LeftOut()
    rows = _items(path, left_out)
    assert rows == [("café", "a"), ("x", "b")]
    assert left_out.tally.dropped == {"rows without a text": 1}
    assert left_out.tally.repaired == {"bytes that were not UTF-8": 1}


def test_a_comma_that_parts_a_text_in_two_is_named_and_not_read_over(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"line 3 of .*found 3 fields where the first row has 2"):
        _read(tmp_path / "a.csv", "label,text\nham,fine\nspam,hello, you\n")


def test_line_breaks_that_are_none_part_no_row(tmp_path: Path) -> None:
    odd = "one\u2028two\x1cthree\x85four"
    assert _read(tmp_path / "a.tsv", f"text\tlabel\n{odd}\ta\nx\tb\n")[0] == (odd, "a")
    lines = json.dumps({"text": odd, "label": "a"}, ensure_ascii=False)
    assert _read(tmp_path / "a.jsonl", lines) == [(odd, "a")]


def test_parquet_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [7, 8], "text": ["one", "two"], "label": [1, 0]}), path)
    rows = _items(path)
    assert rows == [("one", "1"), ("two", "0")]


def test_texts_of_parquet_may_be_bytes_of_any_kind(tmp_path: Path) -> None:
    texts = pa.array([b"good film", "café".encode(), "café".encode("cp1252")])
    labels = pa.array([b"pos", b"neg", b"neg"])
    for column in (texts, texts.view(pa.string())):
        pq.write_table(pa.table({"text": column, "label": labels}), tmp_path / "a.parquet")
        left_out = LeftOut()
        rows = _items(tmp_path / "a.parquet", left_out)
        assert rows == [("good film", "pos"), ("café", "neg"), ("café", "neg")]
        assert left_out.tally.repaired == {"bytes that were not UTF-8": 1}


def test_a_parquet_file_that_is_cut_or_corrupt_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [f"a text, number {n}" for n in range(500)], "label": [1, 0] * 250})
    pq.write_table(table, path, compression="none", use_dictionary=False)
    whole = path.read_bytes()
    for broken in (whole[:-20], whole[:4] + b"\xff" * 40 + whole[44:]):
        path.write_bytes(broken)
        with pytest.raises(UserError, match=r"a\.parquet is not a whole Parquet file"):
            _items(path)


def test_a_key_that_a_later_line_has_is_a_column(tmp_path: Path) -> None:
    lines = '{"text": "x"}\n{"label": "a", "text": "y"}\n'
    with pytest.raises(UserError, match="must have a label, found 'none' in line 1"):
        _read(tmp_path / "a.jsonl", lines)
    rows = _items(tmp_path / "a.jsonl", bad_items="skip")
    assert rows == [("y", "a")]


def test_the_same_bytes_parsed_otherwise_have_another_name(tmp_path: Path) -> None:
    for name in ("a.csv", "a.tsv", "b.csv"):
        (tmp_path / name).write_text("text,x\tlabel,y\n")
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(b"text,x\tlabel,y\n"))
    names = [
        name_of_file(str(tmp_path / n), "texts") for n in ("a.csv", "a.tsv", "b.csv", "c.csv.gz")
    ]
    assert names[0] != names[1]
    assert names[0] == names[2] == names[3]


def test_a_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.csv does not exist"):
        name_of_file(str(tmp_path / "nothing.csv"), "texts")
    path = tmp_path / "binary.csv"
    path.write_bytes(b"text,label\n" + bytes(range(32)) + b",x\n")
    with pytest.raises(UserError, match=r"binary\.csv is not text: .* control characters"):
        _items(path)


def test_the_sms_collection_is_read_whole_without_naming_a_column() -> None:
    if not SMS.exists():
        pytest.skip("the SMS Spam Collection is not on this machine")
    rows = _items(SMS)
    labels = [label for _, label in rows]
    assert (labels.count("ham"), labels.count("spam")) == (4827, 747)
