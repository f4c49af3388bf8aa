"""Tables, text and files are read as they say they are, by one set of rules, or refused."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.compression import zstd

from flows.cli.predict import from_here
from pipelines.errors import UserError
from pipelines.io.files import expand
from pipelines.io.tables import TableSettings, open_table

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:f094dc43ac4e\nsize 12345\n"


def rows(path: Path, content: str | bytes | None = None, **settings: Any) -> list[tuple[Any, ...]]:
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [
        tuple(row.values.values()) for row in open_table(str(path), TableSettings(**settings)).rows
    ]


def test_the_name_or_a_setting_says_what_separates_columns(tmp_path: Path) -> None:
    expected = [("a, b", "x")]
    assert rows(tmp_path / "a.csv", 'text,label\n"a, b",x\n') == expected
    assert rows(tmp_path / "a.tsv", "text\tlabel\na, b\tx\n") == expected
    assert rows(tmp_path / "b.csv", "text;label\na, b;x\n", delimiter=";") == expected
    assert rows(tmp_path / "a.txt", "text|label\na, b|x\n", delimiter="|") == expected
    with pytest.raises(UserError, match=r"a\.txt is no table by its name: .* set `delimiter`"):
        rows(tmp_path / "a.txt")


def test_quotes_enclose_between_commas_and_are_characters_between_tabs(tmp_path: Path) -> None:
    assert rows(tmp_path / "a.csv", 'text,n\n"a ""b""\nc",1\n') == [('a "b"\nc', "1")]
    odd = 'text\tn\n"a\t1\nb"\t2\n"c"\t3\n'
    assert rows(tmp_path / "a.tsv", odd) == [('"a', "1"), ('b"', "2"), ('"c"', "3")]
    whole = 'text\tn\n"a ""b""\tc"\t1\n'
    assert rows(tmp_path / "tabs.csv", whole, delimiter="\t") == [('a "b"\tc', "1")]
    tweet = 'text\tn\n"" he said , "" she said ""\t1\n"good, film"\t2\n'
    assert rows(tmp_path / "a.tsv", tweet)[0] == ('"" he said , "" she said ""', "1")
    refused = "which are ordinary characters between tabs; rename the file to .csv and set"
    for text in ('"text"\t"n"\na\t1\n', 'text\tn\n"a ""b"""\t1\n', 'text\tn\n"a"\t"1"\n'):
        with pytest.raises(UserError, match=rf'quotes around "(text|a|a ""b"")", {refused}'):
            rows(tmp_path / "a.tsv", text)


@pytest.mark.parametrize(
    "row", ['1, "a"', '1,  "a"', '1,\t"a"', '1,\u00a0"a"', '"x\n1", "a"', ' "1",a', '1, "a, b"']
)
def test_a_blank_before_quotes_is_refused(tmp_path: Path, row: str) -> None:
    with pytest.raises(UserError, match=r"has a blank before the quotes of|has 3 columns where"):
        rows(tmp_path / "a.csv", f"n,text\n{row}\n")
    assert rows(tmp_path / "a.csv", 'n,text\n1," ""a"""\n') == [("1", ' "a"')]
    assert rows(tmp_path / "a.csv", 'n,text\n1, "Film" 1\n') == [("1", ' "Film" 1')]
    spoken = 'text,n\n"""Yes,"" he said, ""go.""",1\n'
    assert rows(tmp_path / "a.csv", spoken) == [('"Yes," he said, "go."', "1")]


@pytest.mark.parametrize(
    "swallowed",
    ['"he said,b\n{}so it was",b\n', 'b,"he said\n{}b,so it was"\n'],
)
def test_rows_that_a_closed_quote_swallows_are_missed(tmp_path: Path, swallowed: str) -> None:
    first = swallowed.startswith("b")
    more = "".join(("b,text {}\n" if first else "text {},b\n").format(n) for n in range(2))
    header, plain = ("label,text\n", "b,one\n") if first else ("text,label\n", "one,b\n")
    for between in (more, ""):
        text = header + plain + swallowed.format(between) + plain
        with pytest.raises(UserError, match=r"begins in line 3 of .* has other rows within its"):
            rows(tmp_path / "a.csv", text)


@pytest.mark.parametrize(
    "text",
    [
        'text,label\n"Dear John,\nwell, b\nlove",a\none,b\n',
        'label,text\npos,"Hello\nsecond line"\npos,one\n',
        'id,text,label\n1,"Dear Sir, thanks\nfor all",pos\n2,one,pos\n',
        'lang,text,label\nhi,"नमस्ते, 1\nधन्यवाद",pos\nhi,two,1\n',
        'title,text\nT1,"Sentence one.\nTwo. Three."\nT1,four\n',
    ],
)
@pytest.mark.parametrize("times", [1, 40])
def test_cells_of_several_lines_swallow_nothing(tmp_path: Path, text: str, times: int) -> None:
    header, rest = text.split("\n", 1)
    table = rows(tmp_path / "a.csv", f"{header}\n{rest * times}")
    assert len(table) == 2 * times
    assert any("\n" in cell for cell in table[0])
    numbered = 'id,text\n1,"a list:\n2,pear\n3,plum"\n2,two\n'
    assert len(rows(tmp_path / "b.csv", numbered)) == 2


def test_values_stay_as_they_are_written(tmp_path: Path) -> None:
    cells = ["None", "NA", "null", "nan", "01", "1.0", "[]", " a "]
    text = "text,n\n" + "".join(f"{cell},x\n" for cell in cells)
    assert [cell for cell, _ in rows(tmp_path / "a.csv", text)] == cells


def test_the_first_row_is_the_header_or_none_is(tmp_path: Path) -> None:
    assert rows(tmp_path / "a.csv", "ham,one\nspam,two\n", no_header=True) == [
        ("ham", "one"), ("spam", "two"),
    ]  # fmt: skip
    assert open_table(str(tmp_path / "a.csv"), TableSettings(no_header=True)).columns == ["1", "2"]
    assert open_table(str(tmp_path / "a.csv")).columns == ["ham", "one"]
    for delimiter in (";", ","):
        with pytest.raises(UserError, match=r"line 1 of .* is Excel's sep=;; remove it, and set"):
            rows(tmp_path / "a.csv", "sep=;\ntext;label\n", delimiter=delimiter)


@pytest.mark.parametrize(
    ("encoding", "settings"),
    [
        ("utf-8", {}), ("utf-8-sig", {}), ("utf-16", {}), ("cp1251", {"encoding": "cp1251"}),
        ("gbk", {"encoding": "gbk"}), ("shift_jis", {"encoding": "shift_jis"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_text_is_of_a_known_encoding_or_refused_by_its_line(
    tmp_path: Path, encoding: str, settings: dict[str, str], name: str
) -> None:
    text = {"cp1251": "нет", "gbk": "不好", "shift_jis": "いいえ"}.get(encoding, "nö")
    lines = {
        "a.csv": f"text,n\nyes,1\n{text},2\n",
        "a.jsonl": "".join(
            json.dumps({"text": each, "n": n}, ensure_ascii=False) + "\n"
            for each, n in (("yes", "1"), (text, "2"))
        ),
    }
    assert rows(tmp_path / name, lines[name].encode(encoding), **settings)[1] == (text, "2")
    if settings:
        message = rf"line {3 if name == 'a.csv' else 2} of .* is not UTF-8 .*setting `encoding`"
        with pytest.raises(UserError, match=message):
            rows(tmp_path / name)
    elif encoding == "utf-8":
        more = lines[name].replace(text, "schöne Wörter für Köche " * 3)
        with pytest.raises(UserError, match="is UTF-8 and not cp1252; leave out the setting"):
            rows(tmp_path / name, more.encode(), encoding="cp1252")
    for none in ("utf-9", "rot13", "undefined"):
        with pytest.raises(ValueError, match=f"no encoding is called '{none}'"):
            TableSettings(encoding=none)


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("zst", zstd.compress)])
def test_compressed_lines_of_json_with_keys_that_come_later(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    lines = b'{"a": "x"}\n\n{"b": [1], "a": "y \\ud83d"}\n'
    path = tmp_path / f"a.jsonl.{suffix}"
    assert rows(path, compress(lines)) == [("x", None), ("y \ufffd", [1])]
    assert [row.number for row in open_table(str(path)).rows] == [1, 3]
    with pytest.raises(UserError, match="is not a whole"):
        rows(path, compress(lines)[:-5])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "a,a\n1,2\n", "has two columns 'a'; rename"),
        ("a.tsv", "a\tb\none\n", "line 2 of .*has 1 columns where the first row has 2"),
        ("a.csv", "a,b\nx,y\nspam,hello, you\n", "line 3 of .*has 3 columns"),
        *(("a.csv", f"text,n\n1,2\n{names}\n", "line 3 of .* names columns and holds no values")
          for names in ("text,n", "Review,Sentiment", "stars, tweet")),
        ("a.tsv", 'text\tn\nso\t1\n"good, film"\t2\n"oh, no"\t1\n', "quotes around each cell with"),
        ("a.csv", 'text,n\none,3.5\n"he said,4.25\ntwo,0.8\nso it was",2.0\n', "has other rows"),
        ("a.csv", "a,b\n\x1b$B$$$(\x1b(B,c\n", "is of a kind of ISO-2022; name its `encoding`"),
        ("a.csv", "<!DOCTYPE html>\n<p>a,b\n", "is HTML by its content; write its text alone"),
        *((name, f"a{part}b\n1{part}2\n\ufeffa{part}b\n3{part}4\n",
           "line 3 of .* byte order mark; remove the mark, and the names of the columns behind it")
          for name, part in (("a.csv", ","), ("a.tsv", "\t"))),
        ("a.csv", "a,b\r1,2\r", "lines of .* end in carriage returns alone"),
        ("a.csv", "a,б\r1,2\r".encode("utf-16"), "lines of .* end in carriage returns alone"),
        ("a.jsonl", '{"a": 1}\n'.encode("utf-32"), "is not text: .* control characters"),
        ("a.jsonl", '{"a": 1, "b": 2, "a": 3}\n', "line 1 of .*is not JSON .'a' comes twice"),
        ("a.jsonl", "{'a': 1}\n", "line 1 of .*is not JSON"),
        ("a.jsonl", '{"a": 1}\n[1]\n', "line 2 of .*is not a JSON object but"),
        ("a.csv", "a,b\n" + "".join(map(chr, range(32))), "is not text: .* control characters"),
        *((f"a.{suffix}", POINTER, "is a pointer of Git LFS; fetch the file itself")
          for suffix in ("csv", "jsonl", "parquet")),
        ("a.parquet", "text,label\n", "is not a whole Parquet file"),
    ],
)  # fmt: skip
def test_faults_are_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        rows(tmp_path / name, content)


def test_columns_without_names_are_empty(tmp_path: Path) -> None:
    assert rows(tmp_path / "a.csv", "text,n,,\nx,1,,\ny,2, ,\n") == [("x", "1"), ("y", "2")]
    assert open_table(str(tmp_path / "a.csv")).columns == ["text", "n"]
    with pytest.raises(UserError, match=r"line 3 of .* has a value in a column without a name"):
        rows(tmp_path / "a.csv", "text,n,,\nx,1,,\ny,2,3,\n")
    assert rows(tmp_path / "a.csv", ",text\n0,x\n") == [("0", "x")]  # an index of pandas


def test_line_breaks_that_are_none_part_no_row(tmp_path: Path) -> None:
    odd = "one\u2028two\x1cthree\x85four"
    assert rows(tmp_path / "a.tsv", f"text\tlabel\n{odd}\ta\n") == [(odd, "a")]
    lines = json.dumps({"text": odd, "label": "a"}, ensure_ascii=False)
    assert rows(tmp_path / "a.jsonl", lines) == [(odd, "a")]


def test_parquet_files_are_read(tmp_path: Path) -> None:
    table = pa.table({"text": ["one", None], "n": [[1], []]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert rows(tmp_path / "a.parquet") == [("one", [1]), (None, [])]
    whole = (tmp_path / "a.parquet").read_bytes()
    with pytest.raises(UserError, match=r"a\.parquet is not a whole Parquet file"):
        rows(tmp_path / "a.parquet", whole[:-20])
    texts = pa.array(["café".encode("cp1252")]).view(pa.string())
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet is not a whole .*'utf-8' codec"):
        rows(tmp_path / "a.parquet")
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"])
    pq.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(UserError, match="has two columns 'text'; rename or remove one"):
        rows(tmp_path / "a.parquet")


def test_only_what_was_written_is_a_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("[project]/own.txt", "p/other.txt", "data[1].txt", "data1.txt", "data2.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a text")
    monkeypatch.chdir(tmp_path / "[project]")
    own = [str(tmp_path / "[project]" / "own.txt")]
    assert expand("*.txt") == expand(".") == own
    assert all(expand(from_here(each)) == own for each in ("*.txt", "own.txt", "."))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~draft.txt").write_text("a text")
    assert expand(from_here("~*.txt")) == [str(tmp_path / "~draft.txt")]
    monkeypatch.setenv("HOME", str(tmp_path / "[project]"))
    assert all(expand(from_here(each)) == own for each in ("~/*.txt", "~/own.txt", "~"))
    assert expand(str(tmp_path / "data[1].txt")) == [str(tmp_path / "data[1].txt")]
    both = [str(tmp_path / f"data{number}.txt") for number in (1, 2)]
    assert expand(str(tmp_path / "data[12].txt")) == both


def test_markers_of_folders_on_an_object_store_are_no_files() -> None:
    store = fsspec.filesystem("memory")
    names = ("/data/", "/data/a.csv", "/data/more", "/data/more/b.csv", "/data/.hidden/c.csv")
    for name in (*names, "/data/empty/"):
        store.store[name] = fsspec.implementations.memory.MemoryFile(store, name, b"")
    try:
        expected = ["memory://data/a.csv", "memory://data/more/b.csv"]
        assert expand("memory://data") == expand("memory://data/**") == expected
    finally:
        store.store.clear()


@pytest.mark.parametrize("name", ["text;label", "text|label", "text\tlabel", "text,label"])
def test_a_header_that_another_delimiter_parts_is_refused_with_the_setting(tmp_path, name):
    path = tmp_path / ("a.tsv" if "," in name else "a.csv")
    path.write_text(f"{name}\nfine{name[4]}good\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"line 1 of .* names one column, .* set `delimiter`"):
        open_table(str(path))
    own = "\t" if path.suffix == ".tsv" else ","
    table = open_table(str(path), TableSettings(delimiter=own))
    assert list(table.columns) == [name]


def test_one_column_whose_name_has_the_file_s_own_delimiter_is_no_row_of_names(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('"Review, as written"\ngood\n')
    table = open_table(str(path))
    assert list(table.columns) == ["Review, as written"]
    assert [row.values for row in table.rows] == [{"Review, as written": "good"}]
