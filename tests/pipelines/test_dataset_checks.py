"""Labelled files are inspected before a run begins."""

import json
import os
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from pipelines.errors import UserError
from pipelines.stages.dataset.items import check_inputs
from pipelines.stages.dataset.settings import (
    CorpusSourceLabels,
    DatasetSettings,
    LabelledFile,
    NoLabels,
)


def check(path: Path | str, family: str = "classification") -> None:
    check_inputs(DatasetSettings(family=family, source=LabelledFile(path=str(path))))


def rows(labels: list[str]) -> str:
    lines = [f"text number {number},{label}" for number, label in enumerate(labels)]
    return "\n".join(["text,label", *lines])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (rows(["a", "b"] * 20), None),
        (rows(["a"] * 40), r"at least two labels to tell apart, found \['a'\]"),
        (rows([str(n) for n in range(40)]), "too few of each to train on"),
        *((rows([*["a", "b"] * 20, none]), f"have values in its cells, found {re.escape(none)} in")
          for none in ("#N/A", "#Н/Д", "#NV", "#ERROR!", "#¿NOMBRE?", "#DIV/0!", "Loading...",
                       r"\N")),
        (rows(["#METOO", "#N8"] * 20), None),
        (rows([*["a", "b"] * 20, ""]), "must have a label, found none in line 42"),
        (rows(["spam", "Spam\u200b"] * 20), r"'Spam\\u200b' and 'spam' look the same; write them"),
        (rows([*["caf\u00e9", "b"] * 20, "cafe\u0301"]), "look the same; write them alike"),
        *((rows([one, two] * 20), "look the same; write them alike") for one, two in (
            ("\u2764", "\u2764\ufe0f"), ("po", "p\u043e"), ("-1", "\u22121"), ("1", "01"),
            ("\u0661", "1"), ("A", "\u0410"),
            ("جيد", "جيـد"), ("ایجابی", "ايجابي"), ("can't say", "can’t say"),
            ("pozitif", "POZİTİF"), ("not_spam", "not-spam"), ("not spam", "not_spam"),
        )),
        *((rows([label, "b"] * 20), f"the label {re.escape(label)} stands in quotes; leave")
          for label in ("'pos'", "“pos”", "«да»", "['pos']", "b'pos'")),
        (rows(["'s", "don't", "b"] * 20), None),
        *((rows(["joy", "sad", label] * 20), "names several of the others; learn")
          for label in ("joy/sad", "joy & sad", "sad、joy", "joy and sad", "joy；sad", "sad · joy",
                        "joy | sad", "<joy><sad>", "#joy #sad", "joy sad", r"joy\nsad")),
        (rows(["की", "का", "की।का"] * 20), "label 'की।का' names several of the others"),
        (rows(["न", "ी", "नी", "да нет", "да-нет-да"] * 20), None),
        (rows(["A/B", "brand", "and", "R&D"] * 20), None),
        (rows(["1", "5", "1.5", "beta"] * 20), None),
        (rows(["-", "yes", "no"] * 20), "label '-' seems to stand for none; leave its items out"),
        (rows(["-", "?", "yes", "no"] * 20), "label '-' seems to stand for none; leave its items"),
        (rows(["-", "?", "??"] * 20), None), (rows(["-", "?", "yes"] * 20), None),
        (rows([*["a", "b"] * 20, "\u200b"]), r"visible characters in its label, found '.u200b' in"),
        (rows(["-", "+"] * 20), None), (rows(["-1", "0", "1"] * 20), None),
        (rows(["-1", "0", "1", "2"] * 20), "'-1' seems to stand for none; leave its items out"),
        ('text,label\n' + 'a,"0,5"\nb,"4,8"\n' * 20, "numbers with fractions .0,5, 4,8.*regress"),
        (rows(["0.0", "1.0"] * 20), None),
        *(("text,label\n" + "".join(f'"{text}",{"ab"[n % 2]}\n' for n in range(20)), message)
          for text, message in (
            ("b'good \\xc3\\xa9'", "have letters as escapes"), ("['tok', 'tok']", "value of a pr"),
            ("\\u0440\\u0443", "have letters as escapes"), ("cafÃ© trÃ¨s", "were encoded twice"),
            ("Ð¿Ñ€Ð¸Ð²ÐµÑ‚", "were encoded twice"), ("{'body': 'x'}", "is a value of a program"),
            ("î÷åíü õîðîøèé ôèëüì", "are of another encoding than was named"),
          )),
        *((f"text,label\n{text},a\n" + rows(["a", "b"] * 20).partition("\n")[2], None)
          for text in ("Ã©", "î÷åíü õîðîøèé", "São Paulo é “não”", "déjà vu où ça")),
        ("a,label,text\nx,pos,one\nx,pos,two\nlabel,text,a\n", "line 4 of .* names columns"),
        (rows(["2", "2.0", "x"] * 20), "'2' and '2.0' look the same"),
        (rows(["\U0001fae9", "\U0001fadf", "\ue001", "\ue002"] * 20), None),
        ("text,label\n" + "\U0001fae9,a\n\U0001fadf,b\n\ue001 x,b\n" * 9, None),
        ("text,label\n" + "??? ?? ?,a\n?????? ????,b\nok,b\n" * 9, "18 of 27 texts .*question"),
        ("text,label\n???,c\n" + rows(["a", "b", "c"] * 20).partition("\n")[2], None),
        ("text,label\n" + "“one”,a\n“two”,b\n" * 9, "every text of .* stands in quotes"),
        (rows(["1-12", "11-2", "0-1", "1", "2019-11-1", "2019-1-11", "һава", "нава"] * 20), None),
        (rows(["10", "100", "1.5a", "\u043d\u0435\u0442"] * 20), None),
        *((f"text,label\n{text},a\n", "must have a text, found none in line 2")
          for text in ("\u200b", "\u00ad\u200d")),
        (rows(["0.0", "4.8"] * 20), r"numbers with fractions \(0.0, 4.8\).*family=regression"),
        ("\u200ftext,label\nx,1\n", r"has no column 'text', only '\\u200ftext', label; set"),
        ("Текст,Метка\nда,1\n",
         r"has no column 'text' or 'label', only Текст, Метка; set text_column "
         r"\(--text-column\) and label_column \(--label-column\) to the ones you mean"),
        ("", "holds no labelled items"),
    ],
)  # fmt: skip
def test_a_small_file_is_checked_as_the_stage_would(tmp_path, content, message):
    path = tmp_path / "a.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=message) if message else nullcontext():
        check(path)


def test_a_fault_among_several_labels_or_choices_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    for family, row, message in (
        ("multi-label", {"text": "x", "labels": ["a", "#N/A"]}, "values in its cells, found #N/A"),
        ("multiple-choice", {"text": "x", "choices": ["#REF!", "b"], "label": 1}, "found #REF!"),
        ("multiple-choice", {"text": "x", "choices": ["\u200b", "b"], "label": 1},
         "visible characters in its choices"),
        ("sentence-embedding", {"text": "x", "second_text": "\u2060"},
         "visible characters in its second_text"),
    ):  # fmt: skip
        path.write_text(json.dumps(row) + "\n")
        with pytest.raises(UserError, match=message):
            check(path, family)
    quiz = [{"text": f"x {n}", "choices": ["#NAME?", "#DIV/0!"], "label": n % 2} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in quiz))
    check(path, "multiple-choice")


def test_a_sample_is_not_judged_as_a_whole_file(tmp_path, monkeypatch, caplog):
    """The first items of a sorted file have one label, and one that is rare among them."""
    monkeypatch.setattr("pipelines.stages.dataset.items._ITEMS_INSPECTED", 50)
    path, heldout = tmp_path / "a.csv", tmp_path / "b.csv"
    path.write_text(rows([*["a"] * 60, *["b"] * 60]))
    check(path)
    path.write_text(rows([*["a"] * 49, *["b"] * 60]))
    check(path)
    assert not caplog.text
    # The held-out part is read whole, and the other one not.
    source = LabelledFile(path=str(path), heldout_path=str(heldout))
    heldout.write_text(rows([*["a"] * 20, *["c"] * 20]).replace("text number", "other"))
    check_inputs(DatasetSettings(source=source))
    heldout.write_text(rows(["a"] * 40))
    with pytest.raises(UserError, match=r"every item of .*b\.csv is trained on"):
        check_inputs(DatasetSettings(source=source))
    path.write_text(rows(["a", "b"] * 20))
    heldout.write_text(rows(["a", "b", "c"] * 13))
    with pytest.raises(UserError, match=r"\['c'\] are only among the held-out texts; .* correct"):
        check_inputs(DatasetSettings(source=source))


def test_a_label_of_one_item_is_told_with_its_line(tmp_path, caplog):
    path = tmp_path / "a.csv"
    path.write_text("текст,метка\n" + rows(["a", "b"] * 20).partition("\n")[2], encoding="utf-8")
    columns = {"no_header": True, "text_column": "1", "label_column": "2"}
    check_inputs(DatasetSettings(source=LabelledFile(path=str(path), **columns)))
    assert "one item of" in caplog.text and "has the label 'метка' (line 1)" in caplog.text
    caplog.clear()
    path.write_text(rows(["a", "b"] * 20))
    check(path)
    assert not caplog.text


def test_a_column_is_read_once_and_a_number_has_no_underscores(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(rows(["1_000", "2"] * 20))
    with pytest.raises(UserError, match="have a number as its label, found '1_000' in line 2"):
        check(path, "regression")
    source = LabelledFile(path=str(path), second_text_column="text")
    with pytest.raises(UserError, match=r"second_text_column.* name the column 'text' twice"):
        check_inputs(DatasetSettings(source=source))


def test_numbers_that_float32_cannot_tell_apart_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    for offset, reason in ((0, None), (1e5, None), (1e8, "subtract a constant from all of them")):
        path.write_text(rows([str(offset + number % 7) for number in range(40)]))
        with pytest.raises(UserError, match=reason) if reason else nullcontext():
            check(path, "regression")


def test_numbers_of_both_parts_are_of_one_scale(tmp_path):
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for family in ("regression", "sentence-embedding"):
        for factor, reason in ((1, None), (0.5, None), (0.2, "0 to 5, and those held out 0 to 1;")):
            for path, scale in zip(paths, (1, factor), strict=True):
                lines = [f"text {scale} {n},other {n},{scale * (n % 6)}" for n in range(60)]
                path.write_text("\n".join(["text,second_text,label", *lines]))
            source = LabelledFile(path=str(paths[0]), heldout_path=str(paths[1]))
            if factor == 1:
                paths[1].write_text(paths[1].read_text().replace("text 1", "text 2"))
            with pytest.raises(UserError, match=reason) if reason else nullcontext():
                check_inputs(DatasetSettings(family=family, source=source))


def test_numbers_of_classes_are_no_similarities(tmp_path):
    path = tmp_path / "a.csv"
    lines = [f"text {n},other {n},{n % 3}" for n in range(60)]
    path.write_text("\n".join(["text,second_text,label", *lines]))
    with pytest.raises(UserError, match="the numbers 0, 1 and 2: write the names of their classes"):
        check(path, "sentence-embedding")


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "link.csv").symlink_to(tmp_path / "nothing.csv")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "one::two.csv").touch()
    for name, message in (
        ("", "name a file of labelled items"),
        ("/none/a.csv", "cannot be opened .No such file"),
        (tmp_path / "pipe.csv", "is a folder, a pipe or a device, not a file"),
        (tmp_path / "folder.csv", "is a folder, a pipe or a device, not a file"),
        (tmp_path / "link.csv", "cannot be opened .No such file"),
        (tmp_path / "one::two.csv", "has '::' in it, which joins two addresses; rename it"),
        ("/dev/zero", "is no file of labelled items by its name"),
        ("http://127.0.0.1:9/a.csv", "does not answer"),
    ):
        with pytest.raises(UserError, match=message):
            check(name)
    with pytest.raises(UserError, match=r"a\.jsonl is jsonl by its name, which has no delimiter"):
        check_inputs(DatasetSettings(source=LabelledFile(path="a.jsonl", delimiter=";")))


def test_a_task_of_one_source_has_nothing_to_tell_apart():
    task = DatasetSettings(source=CorpusSourceLabels())
    with pytest.raises(UserError, match="at least two of them to tell apart, found 'books' alone"):
        check_inputs(task, frozenset(["books"]))
    check_inputs(task, frozenset(["books", "letters"]))
    check_inputs(task)
    check_inputs(DatasetSettings(source=NoLabels()), frozenset(["books"]))
