"""Spans with character offsets, as tools for labelling export them: there and back unchanged."""

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_core.inference.words import places_of_words, spans_of
from pipelines.errors import UserError
from pipelines.stages.dataset.items import read_labelled
from pipelines.stages.dataset.settings import LabelledFile
from pipelines.tasks import family
from pipelines.tasks.spans import Span, spans_in, tagged_words

# Emoji, line breaks of Windows, combining marks, Arabic, Devanagari, punctuation beside a name.
TEXTS = [
    ("Ada Lovelace met “Charles”.", [("Ada Lovelace", "PER"), ("Charles", "PER")]),
    ("😀 Ada\r\nflew to\r\nSão Paulo 👩‍🚀!", [("Ada", "PER"), ("São Paulo", "LOC")]),
    ("Jose\u0301 lebt in Zu\u0308rich.", [("Jose\u0301", "PER"), ("Zu\u0308rich", "LOC")]),
    ("سافر أحمد إلى القاهرة.", [("أحمد", "PER"), ("القاهرة", "LOC")]),
    ("आदा दिल्ली में है।", [("आदा", "PER"), ("दिल्ली", "LOC")]),
    ("في باريس، زار أحمد؟", [("باريس", "LOC"), ("أحمد", "PER")]),
    ("वह दिल्ली। गया", [("दिल्ली", "LOC")]),
    ("（Beijing）。 ，Paris，", [("Beijing", "LOC"), ("Paris", "LOC")]),
    ("「トヨタ」・東京、「ホンダ」", [("トヨタ", "ORG"), ("東京", "LOC"), ("ホンダ", "ORG")]),
    ("ไป “กรุงเทพ”๚", [("กรุงเทพ", "LOC")]),
    ("Это —Анна—, №5, и «Москва»", [("Анна", "PER"), ("Москва", "LOC")]),
    ("Nothing to see here.", []),
    ("\u3000李明在北京工作\n", [("李明", "PER"), ("北京", "LOC")]),  # a paragraph's indent
    (" \tAda wrote to Bob.\r\n\n", [("Ada", "PER"), ("Bob", "PER")]),
]


def labelled() -> list[tuple[str, list[Span]]]:
    return [
        (text, [Span(text.index(part), text.index(part) + len(part), label)
                for part, label in parts])
        for text, parts in TEXTS
    ]  # fmt: skip


def units(text: str, index: int) -> int:
    """UTF-16 units before a character, as a browser counts."""
    return len(text[:index].encode("utf-16-le")) // 2


def doccano(rows: list[tuple[str, list[Span]]]) -> str:
    return "".join(json.dumps({"id": n, "text": text, "label": [list(span) for span in spans]},
                              ensure_ascii=False) + "\n"
                   for n, (text, spans) in enumerate(rows))  # fmt: skip


def doccano_relations(rows: list[tuple[str, list[Span]]]) -> str:
    return "".join(
        json.dumps({"text": text, "relations": [], "entities": [
            {"id": n, "label": span.label, "start_offset": span.start, "end_offset": span.end}
            for n, span in enumerate(spans)
        ]}) + "\n"
        for text, spans in rows
    )  # fmt: skip


def prodigy(rows: list[tuple[str, list[Span]]]) -> str:
    return "".join(
        json.dumps({"text": text, "answer": "accept", "_input_hash": 7, "spans": [
            {"start": span.start, "end": span.end, "label": span.label, "token_start": 0}
            for span in spans
        ]}) + "\n"
        for text, spans in rows
    )  # fmt: skip


def label_studio(rows: list[tuple[str, list[Span]]]) -> str:
    return json.dumps([
        {"data": {"text": text}, "annotations": [
            {"was_cancelled": True, "result": []},
            {"was_cancelled": False, "result": [
                {"type": "labels", "from_name": "label", "value": {
                    "start": units(text, span.start), "end": units(text, span.end),
                    "text": text[span.start : span.end], "labels": [span.label],
                }} for span in spans
            ]},
        ]} for text, spans in rows
    ])  # fmt: skip


def label_studio_minimal(rows: list[tuple[str, list[Span]]]) -> str:
    return json.dumps([
        {"text": text, "id": n, **({"label": [
            {"start": units(text, span.start), "end": units(text, span.end),
             "text": text[span.start : span.end], "labels": [span.label]} for span in spans
        ]} if spans else {})}
        for n, (text, spans) in enumerate(rows)
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("name", "write", "settings"),
    [
        ("a.jsonl", doccano, {"offsets": "characters"}),
        ("a.jsonl", doccano_relations, {"offsets": "characters"}),
        ("a.jsonl", prodigy, {"offsets": "characters"}),
        ("a.json", label_studio, {"offsets": "utf16"}),
        ("a.json", label_studio_minimal, {"offsets": "utf16"}),
    ],
)
def test_exports_of_each_tool_come_back_with_the_same_offsets(
    tmp_path: Path, name: str, write: Any, settings: dict[str, Any], caplog: Any
) -> None:
    path = tmp_path / name
    path.write_text(write(labelled()), encoding="utf-8", newline="")
    source = LabelledFile(path=str(path), **settings)
    items = [each.item for each in read_labelled(str(path), family("tagging"), source)]
    assert not caplog.records  # every span is made of whole words
    for item, (text, spans) in zip(items, labelled(), strict=True):
        places = places_of_words(text)
        assert item["words"] == [text[begin:end] for begin, end in places]
        answered = spans_of(item["tags"], places, are_entities=True)
        assert [Span(**each) for each in answered] == spans


def test_a_span_that_words_cannot_hold_is_named_with_its_line_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [
        {"text": "Lovelaces", "spans": [[0, 8, "PER"]]},
        {"text": "New York City", "spans": [[4, 13, "LOC"], [0, 8, "LOC"]]},
        {"text": "a  b", "spans": [[1, 3, "GAP"]]},
        {"text": "fine here", "spans": [[0, 4, "OK"]]},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with caplog.at_level(logging.WARNING):
        items = read_labelled(str(path), family("tagging"), LabelledFile(path=str(path)))
    assert [each.item["tags"] for each in items] == [
        ["B-PER"], ["B-LOC", "I-LOC", "O"], ["O", "O"], ["B-OK", "O"],
    ]  # fmt: skip
    (record,) = caplog.records
    told = record.getMessage()
    assert told.startswith(f"3 labels of {path} are not taken as they are: ")
    assert "line 1: 'Lovelace' (0 to 8, PER) becomes whole words: 'Lovelaces'" in told
    assert "line 2: 'York City' (4 to 13, LOC) overlaps another span and is left out" in told
    assert "line 3: '  ' (1 to 3, GAP) holds no word and is left out" in told


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "Ada", "spans": [[0, 4, "PER"]]}, "have spans within its text of 3 characters"),
        ({"text": "Ada", "spans": [[2, 2, "PER"]]}, "have spans within its text"),
        ({"text": "Ada", "spans": [[0, 3]]}, r"have spans of \[start, end, label\]"),
        ({"text": "Ada", "spans": [[0.0, 3, "PER"]]}, "have spans of"),
        ({"text": "Ada", "spans": [{"start": 0, "end": 3, "labels": ["A", "B"]}]}, "one label"),
        ({"text": "Ada", "spans": "PER"}, "have a list of spans"),
        ({"text": "😀 Ada", "spans": [{"start": 3, "end": 6, "label": "PER", "text": "Ada"}]},
         "hold their own texts .dataset.source.offsets .*characters, or utf16 .*'' for"),
        ({"text": "😀 Ada!", "spans": [{"start": 3, "end": 6, "label": "PER", "text": "Ada"}]},
         "hold their own texts .dataset.source.offsets .*characters, or utf16 .*'da!' for"),
        ({"text": "", "spans": []}, "have words, found none"),
        ({"text": "Ada", "spans": [], "answer": "reject"}, "was not accepted in Prodigy"),
        ({"text": "Ada", "spans": [], "entities": []}, "has spans and entities; set label_column"),
    ],
)  # fmt: skip
def test_faults_of_spans_are_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError, match=message):
        read_labelled(str(path), family("tagging"), LabelledFile(path=str(path)))


def test_faults_of_label_studio_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    two = {"data": {"text": "x"}, "annotations": [{"result": []}, {"result": []}]}
    web = {"data": {"text": "x"}, "annotations": [{"result": [{"type": "hypertextlabels"}]}]}
    for content, message in (
        (json.dumps([web]), "^task 1 of .* has hypertextlabels, whose places are not those of"),
        (json.dumps([two]), "^task 1 of .* has 2 annotations; keep one"),
        (json.dumps([{"data": {}}]), "does not have Label Studio's structure .*task 1"),
        (json.dumps({"data": [{"title": "SQuAD"}]}), "does not have Label Studio's structure"),
        (json.dumps([{"text": "x", "label": []}, {"label": []}]), "found None in task 2"),
        (
            json.dumps([{"id": 1, "text": "x", "label": []}] * 2),
            "the task 1 twice, as of two annot",
        ),
        ('[{"text": "x", "label": [], "label": []}]', "'label' comes twice in an object"),
        ("{}", "holds no labelled items"),
        ("[", "does not have Label Studio's structure"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=message):
            read_labelled(str(path), family("tagging"), LabelledFile(path=str(path)))


def renamed(export: str, text_field: str, control: str) -> str:
    """An export of Label Studio whose text and labels are called otherwise, with a control more."""
    tasks = json.loads(export)
    for task in tasks:
        fields = task.get("data", task)
        fields[text_field] = fields.pop("text")
        if "data" not in task:
            if "label" in task:
                task[control] = task.pop("label")
            task["topic"] = "news"
            continue
        for each in task["annotations"][1]["result"]:
            each["from_name"] = control
        task["annotations"][1]["result"] += [
            {
                "type": "labels",
                "from_name": "parts",
                "value": {"start": 0, "end": 1, "labels": ["P"]},
            },
            {"type": "choices", "from_name": "topic", "value": {"choices": ["news"]}},
        ]
    return json.dumps(tasks)


@pytest.mark.parametrize("write", [label_studio, label_studio_minimal])
def test_fields_of_label_studio_are_those_that_the_settings_name(
    tmp_path: Path, write: Any
) -> None:
    path = tmp_path / "a.json"
    path.write_text(write(labelled()), encoding="utf-8")
    usual = read_labelled(
        str(path), family("tagging"), LabelledFile(path=str(path), offsets="utf16")
    )
    path.write_text(renamed(write(labelled()), "текст", "ner"), encoding="utf-8")
    source = LabelledFile(path=str(path), offsets="utf16", text_column="текст", label_column="ner")
    assert read_labelled(str(path), family("tagging"), source) == usual
    for settings, message in (
        ({}, r"has no column 'text', only .*текст.*; set text_column \(--text-column\) to the one"),
        ({"text_column": "текст", "label_column": "नाम"},
         r"has no column 'नाम', only .*ner.*; set label_column \(--label-column\) to the one"),
    ):  # fmt: skip
        other = LabelledFile.model_validate({"path": str(path), "offsets": "utf16", **settings})
        with pytest.raises(UserError, match=message):
            read_labelled(str(path), family("tagging"), other)


def test_what_was_not_accepted_in_prodigy_is_no_text_to_classify(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    row = {"text": "good film", "label": "bad", "answer": "reject"}
    path.write_text(json.dumps({**row, "_task_hash": 1}) + "\n")
    with pytest.raises(UserError, match="was not accepted in Prodigy"):
        read_labelled(str(path), family("classification"), LabelledFile(path=str(path)))
    path.write_text(json.dumps(row) + "\n")  # a column of somebody else's
    (item,) = read_labelled(str(path), family("classification"), LabelledFile(path=str(path)))
    assert item.item["label"] == "bad"


def test_spans_of_a_text_of_bytes_count_its_white_space(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    spans = [[{"start": 1, "end": 5, "label": "PER"}]]
    pq.write_table(pa.table({"text": [b" Anna lives"], "spans": spans}), path)
    (item,) = read_labelled(str(path), family("tagging"), LabelledFile(path=str(path)))
    assert item.item["tags"] == ["B-PER", "O"]


def test_a_label_studio_export_without_any_span_has_no_tags(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"data": {"text": "Ada"}, "annotations": [{"result": []}]}]))
    for settings in ({}, {"label_column": "ner"}):
        source = LabelledFile.model_validate({"path": str(path), "offsets": "utf16", **settings})
        (item,) = read_labelled(str(path), family("tagging"), source)
        assert item.item["tags"] == ["O"]


def test_labels_of_json_min_have_the_name_of_their_control(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": "Ada", "ner": [{"start": 0, "end": 3, "labels": ["X"]}]}]))
    with pytest.raises(
        UserError, match=r"no column 'label', only text, ner; set label_column \(--"
    ):
        read_labelled(str(path), family("tagging"), LabelledFile(path=str(path)))


@pytest.mark.parametrize(
    ("name", "task", "settings", "message"),
    [
        ("a.json", "question_answering", {"label_column": "y"}, "where SQuAD has them; leave out"),
        ("a.json", "question_answering", {"text_column": "x"}, "where SQuAD has them; leave out"),
        ("a.json", "question_answering", {"choice_columns": ["x"]}, "no column by choice_columns"),
        ("a.json", "tagging", {"second_text_column": "x"}, "no column by second_text_column"),
        ("a.conll", "tagging", {"second_text_column": "x"}, "no column by second_text_column"),
        ("a.conll", "tagging", {"label_column": "y"}, "leave out text_column and label_column"),
    ],
)
def test_columns_that_a_format_does_not_have_are_refused(
    tmp_path: Path, name: str, task: str, settings: dict[str, Any], message: str
) -> None:
    path = tmp_path / name
    path.write_text('{"data": []}')
    source = LabelledFile.model_validate({"path": str(path), **settings})
    with pytest.raises(UserError, match=message):
        read_labelled(str(path), family(task), source)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("🎉🎉🎉🎉 Ann saw Bob today", "Ann"),
        ("🎉 आदा दिल्ली में है।", "दिल्ली"),
        ("🎉 ไป กรุงเทพ แล้ว", "กรุงเทพ"),
        ("\U00020bb7野家は東京", "東京"),  # an ideograph that UTF-16 counts as two
        ("🎉 Анна в Москве", "Москве"),
        ("🎉 زار أحمد باريس", "أحمد"),
    ],
)
def test_what_a_span_behind_an_emoji_counts_is_said_or_refused(
    tmp_path: Path, text: str, name: str
) -> None:
    start = text.index(name)
    counted = {"characters": start, "utf16": units(text, start)}
    path = tmp_path / "a.jsonl"
    for offsets, first in counted.items():
        row = {"text": text, "spans": [[first, first + len(name), "X"]]}
        path.write_text(json.dumps({"text": "no", "spans": []}) + "\n" + json.dumps(row) + "\n")
        with pytest.raises(
            UserError,
            match=r"set dataset.source.offsets to characters .*or utf16 .*in line 2; correct",
        ):
            read_labelled(str(path), family("tagging"), LabelledFile(path=str(path)))
        source = LabelledFile.model_validate({"path": str(path), "offsets": offsets})
        item = read_labelled(str(path), family("tagging"), source)[1].item
        tagged = [word for word, tag in zip(item["words"], item["tags"], strict=True) if tag != "O"]
        assert "".join(tagged) == name


def test_what_spans_count_need_not_be_said_where_nothing_hangs_on_it(tmp_path: Path) -> None:
    rows = [
        {"text": "Ann 🎉", "spans": [[0, 3, "X"]]},
        {"text": "🎉 Ann", "spans": [{"start": 2, "end": 5, "label": "X", "text": "Ann"}]},
        {"text": "‼️ آنا दिल्ली", "spans": [[3, 6, "X"]]},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    items = read_labelled(str(path), family("tagging"), LabelledFile(path=str(path)))
    assert [each.item["words"][each.item["tags"].index("B-X")] for each in items] == [
        "Ann", "Ann", "آنا",
    ]  # fmt: skip


def test_places_in_utf16_are_those_of_a_browser() -> None:
    text = "👩‍🚀 Ada"
    at = units(text, text.index("Ada"))
    assert spans_in(text, [[at, at + 3, "PER"]], "utf16") == [Span(4, 7, "PER")]
    assert tagged_words(text, [Span(4, 7, "PER")])["tags"][-1] == "B-PER"
