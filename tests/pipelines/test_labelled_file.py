"""Labelled files are read as people write them, and every fault is named."""

import gzip
from pathlib import Path

import pytest

from pipelines.core.errors import UserError
from pipelines.stages.labelled.files import fingerprint_of_file, read_labelled_file
from pipelines.stages.labelled.settings import LabelledFileTask

SMS = Path("../shared/data/sms_spam/SMSSpamCollection.tsv")


def _read(path: Path, text: str, **columns: str) -> list[tuple[str, str]]:
    path.write_text(text, encoding="utf-8")
    return list(read_labelled_file(LabelledFileTask(path=str(path), **columns)))


def test_columns_are_found_by_their_usual_names(tmp_path: Path) -> None:
    rows = _read(tmp_path / "a.csv", 'id,Label,Text\n1,ham,"hello, you"\n2,spam,win\n')
    assert rows == [("hello, you", "ham"), ("win", "spam")]


def test_two_columns_need_no_header_and_either_order_is_understood(tmp_path: Path) -> None:
    label_first = _read(tmp_path / "a.tsv", "ham\tone\nspam\ttwo\nham\tthree\n")
    text_first = _read(tmp_path / "b.tsv", "one\tham\ntwo\tspam\nthree\tham\n")
    assert label_first == text_first == [("one", "ham"), ("two", "spam"), ("three", "ham")]


def test_a_header_with_unusual_names_is_not_taken_for_data(tmp_path: Path) -> None:
    rows = _read(tmp_path / "a.tsv", "kind\tsms\nham\tone\nspam\ttwo\nham\tthree\nspam\tx\n")
    assert rows[0] == ("one", "ham")


def test_named_columns_win(tmp_path: Path) -> None:
    text = "a\tb\tc\n1\tyes\tfine\n2\tno\tbad\n"
    assert _read(tmp_path / "a.tsv", text, text_column="c", label_column="b") == [
        ("fine", "yes"),
        ("bad", "no"),
    ]


def test_quotes_in_tsv_are_ordinary_characters(tmp_path: Path) -> None:
    rows = _read(tmp_path / "a.tsv", 'label\ttext\nham\t"hello\nspam\twin" now\n')
    assert rows == [('"hello', "ham"), ('win" now', "spam")]


def test_jsonl_gzip_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    lines = '\ufeff{"text": "one", "label": 1}\n\n{"text": "two", "label": 0}\n'
    path.write_bytes(gzip.compress(lines.encode()))
    rows = list(read_labelled_file(LabelledFileTask(path=str(path))))
    assert rows == [("one", "1"), ("two", "0")]


@pytest.mark.parametrize(
    ("name", "text", "columns", "message"),
    [
        ("a.csv", "", {}, "must hold labelled texts, found no row"),
        ("a.csv", "x,y,z\n1,2,3\n", {}, "the columns .* must be told: found x, y, z"),
        ("a.csv", "text,label\na,b\n", {"label_column": "kind"}, "must have a column 'kind'"),
        ("a.tsv", "text\tlabel\none\n", {}, "must have 2 columns, found 1 in row 2"),
        ("a.jsonl", "{'text': 1}\n", {}, "line 1 of .* must be JSON"),
        ("a.jsonl", "[1]\n", {}, "line 1 of .* must be a JSON object"),
        ("a.pdf", "text,label\n", {}, "must end in .csv, .tsv or .jsonl"),
    ],
)
def test_faults_are_named(
    tmp_path: Path, name: str, text: str, columns: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        _read(tmp_path / name, text, **columns)


def test_a_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must exist, found none at"):
        fingerprint_of_file(str(tmp_path / "nothing.csv"))
    path = tmp_path / "binary.csv"
    path.write_bytes(b"text,label\n\xff\xfe\x00,x\n")
    with pytest.raises(UserError, match="must be text in UTF-8, found byte 0xff at 11"):
        list(read_labelled_file(LabelledFileTask(path=str(path))))


def test_the_sms_collection_is_read_whole_without_naming_a_column() -> None:
    if not SMS.exists():
        pytest.skip("the SMS Spam Collection is not on this machine")
    rows = list(read_labelled_file(LabelledFileTask(path=str(SMS))))
    labels = [label for _, label in rows]
    assert (labels.count("ham"), labels.count("spam")) == (4827, 747)
