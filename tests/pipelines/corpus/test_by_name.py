"""Files of several formats, each read by what its name says."""

import codecs
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.config.errors import UserError
from pipelines.io.files import expand
from pipelines.io.records import table_rows
from pipelines.io.text import Tally
from pipelines.stages.corpus.checks import check_inputs
from pipelines.stages.corpus.settings import CorpusSettings, DelimitedText, Files
from pipelines.stages.corpus.sources.by_name import divided
from pipelines.stages.corpus.sources.inputs import Span, inputs_fingerprint, read_span, resolve

TEXTS = [f"A text that is long enough to be one, number {number}." for number in range(5)]


def texts_of(*paths: Path | str, **settings: object) -> dict[str, list[str]]:
    """The texts of a `files` source, by the kind of source that read them."""
    found: dict[str, list[str]] = {}
    for source in divided(Files(paths=tuple(map(str, paths)), **settings)):
        resolved = resolve(source)
        for file in resolved.files:
            documents = read_span(resolved.source, Span(source=0, file=file), Tally())
            found.setdefault(source.kind, []).extend(each.text.strip() for each in documents)
    return found


def write_table(path: Path, column: str = "text") -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"id": range(5), column: TEXTS}), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f'{{"id": {n}, "{column}": "{t}"}}\n' for n, t in enumerate(TEXTS)))
    else:
        comma = "\t" if path.suffix == ".tsv" else ","
        quote = "" if path.suffix == ".tsv" else '"'
        rows = [f"{n}{comma}{quote}{text}{quote}\n" for n, text in enumerate(TEXTS)]
        path.write_text(f"id{comma}{column}\n{''.join(rows)}")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("column", ["text", "Review", "body"])
def test_a_table_s_text_is_found_by_the_usual_names(tmp_path, suffix, column):
    path = write_table(tmp_path / f"table{suffix}", column)
    (texts,) = texts_of(path).values()
    assert texts == TEXTS
    assert check_inputs(CorpusSettings(sources=(Files(paths=(str(path),)),))) == {"table"}


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_column_of_another_name_is_named_or_asked_for(tmp_path, suffix):
    path = write_table(tmp_path / f"table{suffix}", "remarks")
    with pytest.raises(UserError, match=r"cannot tell which column .* id, remarks; name it with"):
        divided(Files(paths=(str(path),)))
    assert list(texts_of(path, text_field="remarks").values()) == [TEXTS]


def test_a_single_column_needs_no_usual_name(tmp_path):
    (tmp_path / "lines.csv").write_text("remarks\n" + "\n".join(f'"{text}"' for text in TEXTS))
    assert texts_of(tmp_path / "lines.csv") == {"csv": TEXTS}


def test_a_folder_mixes_formats_and_odd_names(tmp_path):
    write_table(tmp_path / "table [1].csv")
    write_table(tmp_path / "more*.jsonl")
    (tmp_path / "plain.txt").write_text(TEXTS[0])
    (tmp_path / "page.html").write_text(f"<p>{TEXTS[1]}</p>")
    found = texts_of(tmp_path)
    assert found == {"jsonl": TEXTS, "html": [TEXTS[1]], "text": [TEXTS[0]], "csv": TEXTS}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.docx", "a document of a word processor"),
        ("a.PNG", "a picture"),
        ("a.zip", "an archive"),
        ("a.tar.gz", "an archive"),
        ("a.json", "JSON, but not an object a line"),
    ],
)
def test_what_nothing_reads_is_refused_by_its_name(tmp_path, name, kind):
    (tmp_path / name).write_text("words that could be taken for text\n" * 9)
    with pytest.raises(UserError, match=rf"{name} is {kind} by its name.*convert it, or leave"):
        divided(Files(paths=(str(tmp_path),)))


def test_bytes_of_an_unknown_kind_are_refused_by_what_they_are(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(range(256)) * 99)
    with pytest.raises(UserError, match=r"a\.bin is not text"):
        check_inputs(CorpusSettings(sources=(Files(paths=(str(tmp_path),)),)))


def test_a_name_with_brackets_is_a_name_first_and_a_glob_where_nothing_has_it(tmp_path):
    for name in ("data[1].txt", "data1.txt", "data2.txt", "books [en]/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"The text of {name} is long enough.")
    assert expand(str(tmp_path / "data[1].txt")) == [str(tmp_path / "data[1].txt")]
    assert expand(str(tmp_path / "books [en]")) == [str(tmp_path / "books [en]" / "a.txt")]
    both = [str(tmp_path / f"data{number}.txt") for number in (1, 2)]
    assert expand(str(tmp_path / "data[12].txt")) == both


def test_hidden_files_and_folders_are_left_out_unless_they_are_named(tmp_path):
    for name in ("a.txt", ".git/config", "b/.ipynb_checkpoints/b.txt", "b/b.txt", "b/.c.txt"):
        (tmp_path / "notes" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "notes" / name).write_text("a text")
    notes = tmp_path / "notes"
    whole = [str(notes / name) for name in ("a.txt", "b/b.txt")]
    assert expand(str(notes)) == expand(str(notes / "**" / "*.txt")) == whole
    assert expand(str(notes / ".git")) == [str(notes / ".git" / "config")]
    assert expand(str(notes / ".git" / "*")) == [str(notes / ".git" / "config")]
    assert expand(str(tmp_path / "*" / ".gi*" / "*")) == [str(notes / ".git" / "config")]
    assert expand(str(notes / "b" / ".c.txt")) == [str(notes / "b" / ".c.txt")]
    with pytest.raises(UserError, match="matches no file"):
        expand(str(notes / "b" / "*.c.txt"))
    with pytest.raises(UserError, match="matches no file"):
        expand(str(notes / ".ipynb*" / "*"))


def test_columns_between_semicolons_are_noticed(tmp_path):
    path = tmp_path / "export.csv"
    path.write_text("id;text\n" + "".join(f"{n};{text}\n" for n, text in enumerate(TEXTS)))
    with pytest.raises(UserError, match=r"separated by semicolons, .* or set kind: csv and delim"):
        texts_of(path)
    with pytest.raises(UserError, match="separated by semicolons"):
        next(table_rows(str(path), "delimited"))
    (tmp_path / "export.tsv").write_text("text,label\nOne and two.,a\n")
    with pytest.raises(UserError, match="separated by commas, and its name says tabs"):
        next(table_rows(str(tmp_path / "export.tsv"), "delimited"))
    path.write_text("text\nOne; and two.\n")
    assert next(table_rows(str(path), "delimited")).cells == ["text"]


def test_a_file_that_grows_or_is_another_on_a_node_is_noticed(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("A text that is long enough.\n")
    (source,) = divided(Files(paths=(str(path),)))
    resolved = resolve(source)
    path.write_text("A text that is long enough.\nAnd another one.\n")
    with pytest.raises(UserError, match=r"a\.txt on .* has 45 bytes, and had 28 when"):
        list(read_span(resolved.source, Span(source=0, file=resolved.files[0]), Tally()))


def test_bytes_of_windows_1252_in_names_labels_and_headers(tmp_path):
    rows = "Catégorie,text\n" + "René,A text that is long enough.\n" * 3
    path = tmp_path / os.fsdecode(b"caf\xe9.csv")
    path.write_bytes(rows.encode("cp1252"))
    settings = DelimitedText(paths=(str(path),), text_field="text", label_field="Catégorie")
    resolved = resolve(settings)
    assert len(inputs_fingerprint([(0, resolved.files[0])])) == 32
    found = read_span(resolved.source, Span(source=0, file=resolved.files[0]), Tally())
    assert [each.label for each in found] == ["René"] * 3


def test_a_byte_order_mark_outweighs_what_a_page_declares(tmp_path):
    page = "<html><head><meta charset={}></head><body><p>Größe der Straße, lang genug.</p></body>"
    (tmp_path / "a.html").write_bytes(codecs.BOM_UTF8 + page.format("iso-8859-1").encode())
    (tmp_path / "b.html").write_bytes(page.format("utf-16").encode())
    (tmp_path / "c.html").write_bytes(page.format("iso-8859-1").encode("cp1252"))
    (texts,) = texts_of(tmp_path).values()
    assert texts == ["Größe der Straße, lang genug."] * 3
