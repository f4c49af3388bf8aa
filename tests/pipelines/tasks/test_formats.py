"""Labelled items of all families, from the columns that they are called by or that are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import UserError
from pipelines.stages.dataset.records import records_of_file
from pipelines.stages.dataset.settings import LabelledFile
from pipelines.tasks import family
from tests.pipelines.tasks.labelled_lines import items, written

DATA = Path("../shared/data")
PAIR = {"text_column": "sentence1", "second_text_column": "sentence2"}


def of_json(tmp_path: Path, name: str, *rows: Any, **settings: Any) -> list[dict[str, Any]]:
    lines = "\n".join(map(json.dumps, rows))
    return items(written(tmp_path / "a.jsonl", lines), name, **settings)


def test_columns_are_called_as_their_fields_or_are_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", "id\ttext\tsecond_text\tlabel\n1\tx y\tz\tneutral\n")
    assert items(path, "classification") == [
        {"text": "x y", "second_text": "z", "label": "neutral"}
    ]
    path = written(tmp_path / "a.tsv", "a\tb\tc\n1\tyes\tfine\n")
    named = {"text_column": "c", "label_column": "b"}
    assert items(path, "classification", **named) == [
        {"text": "fine", "second_text": None, "label": "yes"}
    ]
    path = written(tmp_path / "a.tsv", "gj04\t1\t\tIt sails.\nks08\t0\t*\tIt the.\n")
    numbered = {"text_column": "4", "label_column": "2", "no_header": True}
    assert [row["label"] for row in items(path, "classification", **numbered)] == ["1", "0"]


@pytest.mark.parametrize(
    ("name", "columns", "settings", "message"),
    [
        ("classification", "x,y", {},
         r"no column 'text' or 'label', only x, y; set text_column .* and label_column \("),
        ("classification", "text,stars", {}, "no column 'label', only text, stars; set label_col"),
        ("classification", "text,label", {"group_column": "b"}, "no column 'b'.* group_column"),
        ("multi_label", "text,label", {}, "no column 'labels'"),
        ("sentence_embedding", "sentence1,label", {}, "no column 'text'"),
        # COPA: what the question is about is not guessed.
        ("multiple_choice", "premise,choice1,choice2,question,label", {}, "no column 'text'"),
        ("multiple_choice", "text,a,b,label", {"choice_columns": ("a", "c")}, "no column 'c'"),
    ],
)  # fmt: skip
def test_a_file_without_a_column_is_refused_with_the_setting_that_names_it(
    name: str, columns: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "a.csv", f"{columns}\n" + ",".join("1" for _ in columns.split(",")))
    with pytest.raises(UserError, match=message):
        items(path, name, **settings)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([0.0, 1.0, 0.0], r"as texts, such as .*, found \[0.0, 1.0, 0.0\] in line 2"),
        (["0", "1"], "not with zeros and ones"),
        (["a", None], r"the names of its labels as texts, .*\['a', None\] in line 2"),
        (["a", "a"], "name each of its labels once"),
        (["b", 27], "the names of its labels as texts"),
        (None, "have its labels, or an empty list where there are none, found none in line 2"),
        *((lists, r"have its labels in a list .*, or in a text between")
          for lists in ("['a', 'b']", "{a, b}", "a|b", "a; b", "0 1 0", "1 0", "喜び、悲しみ",
                        '"joy"', "فرح، حزن")),
    ],
)  # fmt: skip
def test_labels_that_have_no_names_are_refused(tmp_path: Path, value: Any, message: str) -> None:
    rows = [{"text": "x", "labels": each} for each in (["a"], value)]
    with pytest.raises(UserError, match=message):
        of_json(tmp_path, "multi_label", *rows)


def test_labels_of_a_text_stand_in_a_list_or_between_separators(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", 'text,labels\nx,"billing, hardware"\ny,\nz,"1,2"\n')
    assert [item["labels"] for item in items(path, "multi_label")] == [
        ["billing", "hardware"], [], ["1", "2"],
    ]  # fmt: skip
    (row,) = of_json(tmp_path, "multi_label", {"text": "x", "labels": ["b|c", "a", "27"]})
    assert row["labels"] == ["27", "a", "b|c"]
    path = written(tmp_path / "b.csv", 'text,labels\nx,"(other), Health; safety, 10, 01"\n')
    assert items(path, "multi_label")[0]["labels"] == ["(other)", "01", "10", "Health; safety"]
    path = written(tmp_path / "c.csv", "text,labels\nx,a|b\n")
    assert items(path, "multi_label", label_separator="|")[0]["labels"] == ["a", "b"]


def test_choices_stand_in_a_list_or_in_columns(tmp_path: Path) -> None:
    row = {"text": "Where?", "choices": ["here", "8"], "label": 1}
    assert of_json(tmp_path, "multiple_choice", row) == [
        {"text": "Where?", "choices": ["here", "8"], "answer": 1}
    ]
    path = written(tmp_path / "a.csv", "startphrase,ending0,ending1,label\nShe,sings.,runs.,1\n")
    swag = {"text_column": "startphrase", "choice_columns": ("ending0", "ending1")}
    two = {"text": "She", "choices": ["sings.", "runs."], "answer": 1}
    assert items(path, "multiple_choice", **swag) == [two]
    with pytest.raises(UserError, match="choice_columns names a column twice"):
        items(path, "multiple_choice", **{**swag, "choice_columns": ("ending0", "ending0")})
    with pytest.raises(UserError, match="same number of choices, found 1 with 2, 1 with 3"):
        family("multiple_choice").labels([two, {**two, "choices": ["a", "b", "c"]}], [])
    zero = {**two, "answer": 0}
    assert family("multiple_choice").labels([*[two] * 20, zero], [two] * 9) == ()
    for train, heldout in (([two] * 10, [zero]), ([zero], [two] * 10)):
        with pytest.raises(UserError, match="first choice, 0, is the answer to none of 10 questi"):
            family("multiple_choice").labels(train, heldout)


@pytest.mark.parametrize(
    ("choices", "label", "message"),
    [
        *((["8", "2", "1"], label, "have the index of the right choice, from 0")
          for label in (3, -1, "B", "8.0", None, 0.5, "here")),
        (["a", ""], 0, "have a text in each of its choices"),
        ({"text": ["a", "b"], "label": ["A", "B"]}, "A", "have a list of at least two choices"),
        ("['a', 'b']", 0, "have a list of at least two choices"),
        (["a"], 0, "have a list of at least two choices"),
        (["a", "a"], 0, "have different choices"),
    ],
)  # fmt: skip
def test_a_label_is_the_index_of_a_choice(
    choices: Any, label: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"{message}.*in line 1"):
        of_json(tmp_path, "multiple_choice", {"text": "x", "choices": choices, "label": label})


CONLL_2003 = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""


def test_columns_of_conll_in_any_number_parted_by_blanks_or_tabs(tmp_path: Path) -> None:
    path = written(tmp_path / "eng.testa", CONLL_2003)
    assert items(path, "tagging") == [
        {"words": ["EU", "rejects"], "tags": ["B-ORG", "O"]},
        {"words": ["Peter", "Blackburn"], "tags": ["B-PER", "I-PER"]},
    ]
    with pytest.raises(UserError, match="words in its first column and tags in its last; leave"):
        items(path, "tagging", label_column="2")
    fields = written(tmp_path / "fields.conll", "2024 VALUE\n\nForm LABEL\n\n#id NER\n")
    assert [item["tags"] for item in items(fields, "tagging")] == [["VALUE"], ["LABEL"], ["NER"]]
    parted = written(tmp_path / "parted.conll", "Ada O\n-DOCSTART- -X-\nran B-X\n")
    assert [item["words"] for item in items(parted, "tagging")] == [["Ada"], ["ran"]]
    tabs = "New York\t_\tB-LOC\n#\t_\tO\n \t\n\n!\t_\tO\n"
    assert items(written(tmp_path / "a.conll", tabs), "tagging") == [
        {"words": ["New York", "#"], "tags": ["B-LOC", "O"]},
        {"words": ["!"], "tags": ["O"]},
    ]


@pytest.mark.parametrize("odd", ["a\u00a0b", "a\u3000b", "a\u2028b", "a\x85b", "\u200b", "#"])
@pytest.mark.parametrize("separator", [" ", "\t"])
def test_blanks_and_tabs_alone_separate(odd: str, separator: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.conll", f"{odd}{separator}O\nb{separator}B-X\n")
    assert items(path, "tagging") == [{"words": [odd, "b"], "tags": ["O", "B-X"]}]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("one\tO\ntwo\t\n", r"line 2 of .* has no tag"),
        ("one O\n O\n", r"line 2 of .* has 1 columns, not 2"),
        *((f"{one}\tAda\tB-PER\n{two}\tran\tO\n\n{more}\tYes\tO\n",
           "the first column of .* numbers the words or names the sentence; leave it out")
          for one, two, more in ("121", "010", "123", ("s1", "s1", "s2"), ("1-1", "1-2", "2-1"),
                                 ("s0_t1", "s0_t2", "s1_t1"), ("Sentence: 1", "Sentence: 1",
                                 "Sentence: 2"))),
        *((f"Ada B-PER {one}\nran O {two}\n", "column 2 of .* has tags of entities, and the last")
          for one, two in (("0.9", "1.0"), ("s0", "s0"), ("Ada", "run"))),
        ("Ada B-PER\nran O\n" * 300, "is one sentence of 600 words; end each sentence with an"),
        ("".join(f"O {word}\nB-X {word}a\n" for word in "अबसदहयमत"),
         "put the words into the first column and the tags into the last"),
        *((f"one O\n\n# {comment}\ntwo O\n", "line 3 of .* is CoNLL-U")
          for comment in ("sent_id = 1", "newdoc", "newpar id = p2", "id x1 domain=en")),
        ("one O\n<<<<<<< HEAD\ntwo O\n", "line 2 of .* is of a merge that was not finished"),
        ("one\tDET\n# copied\ntwo\tNUM\n", "line 2 of .* has 1 columns, not 2"),
        ("Word POS\none DET\n", "line 1 of .* names the columns; remove it"),
        ("token\tlemma\tner_tag\none\tone\tO\n", "line 1 of .* names the columns; remove it"),
        ("Ada, B-PER\nran, O\n", "every word of .* ends with ','; separate the columns by tabs"),
        ("", "holds no labelled items"),
        ("Ada,B-PER\n", "has 1 columns, not 2: .* .tabs or blanks separate columns"),
        ("one DET\n\n\ufefftwo NUM\n", "line 3 of .* begins with a byte order mark"),
        ("Ada\tO\n\tO", "line 2 of .* has no word"),
        ("\t".join(["1", "Cat", "cat", "NOUN", *["_"] * 5, "SpaceAfter=No"]),
         "line 1 of .* is CoNLL-U; write a file of two columns with the FORM and"),
    ],
)  # fmt: skip
def test_faults_of_conll_are_named(lines: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.conll", lines + "\n")
    with pytest.raises(UserError, match=message):
        items(path, "tagging")


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ([0, 3], r"have the names of its tags, .*the number 0 in line"),
        (["O", None], "have a tag for every word, found none for 'b'|names of its tags"),
        (["O"], "have a tag for every word, found 1 for 2 in line 1"),
        ("O O", "have a list of words and one of tags"),
    ],
)
def test_words_and_tags_are_lists(tags: Any, message: str, tmp_path: Path) -> None:
    words = ["a", "b \ud83d"]
    (row,) = of_json(tmp_path, "tagging", {"words": words, "tags": ["O", "B-V"]})
    assert row == {"words": ["a", "b \ufffd"], "tags": ["O", "B-V"]}
    with pytest.raises(UserError, match=message):
        of_json(tmp_path, "tagging", {"words": ["a", "b"], "tags": tags})


def squad(*questions: dict[str, Any], title: str | None = "t") -> str:
    paragraph = {"context": "The cat sat. It purred.", "qas": list(questions)}
    return json.dumps({"version": "v2.0", "data": [{"title": title, "paragraphs": [paragraph]}]})


CAT = {"id": "1", "question": "Who?", "answers": [{"text": "cat", "answer_start": 4}]}


def test_questions_of_squad_with_and_without_answers(tmp_path: Path) -> None:
    nobody = {"id": "2", "question": "Why?", "answers": [], "is_impossible": True}
    found = items(written(tmp_path / "a.json", squad(CAT, nobody)), "question_answering")
    assert [(item["answers"], item["starts"]) for item in found] == [(["cat"], [4]), ([], [])]
    row = {"id": "3", "title": "Cats", "question": "Who?", "context": "  The café.",
           "answers": {"text": ["café"], "answer_start": [6]}}  # fmt: skip
    assert of_json(tmp_path, "question_answering", row) == [
        {"id": "3", "question": "Who?", "context": "  The café.", "answers": ["café"],
         "starts": [6]}
    ]  # fmt: skip
    (record,) = records_of_file(str(tmp_path / "a.jsonl"), "questions", LabelledFile(path="-"))
    assert record.group == "Cats"  # an article is never divided
    (impossible,) = of_json(tmp_path, "question_answering", {**row, "is_impossible": True})
    assert impossible["answers"] == []  # those of the row are plausible alone
    for said in (1, "true", "False"):
        with pytest.raises(UserError, match=r"has is_impossible .* and answers; write true or"):
            of_json(tmp_path, "question_answering", {**row, "is_impossible": said})
    with pytest.raises(UserError, match="must have answers with text and answer_start"):
        other = [{"body": "a"}]
        of_json(tmp_path, "question_answering", {**row, "answers": other, "is_impossible": False})
    for nothing in ([], {"texts": ["a"]}):
        unanswered = {**row, "answers": nothing, "is_impossible": False}
        with pytest.raises(UserError, match="has is_impossible False and no answer; write true or"):
            of_json(tmp_path, "question_answering", unanswered)
    twice = squad(CAT).replace('"answers":', '"answers": [], "answers":')
    with pytest.raises(UserError, match="'answers' comes twice in an object"):
        items(written(tmp_path / "b.json", twice), "question_answering")
    with pytest.raises(UserError, match="does not have SQuAD's structure"):
        items(written(tmp_path / "b.json", '{"data": [{}]}'), "question_answering")


def test_answers_that_are_not_where_they_say_are_named(tmp_path: Path) -> None:
    wrong = {**CAT, "id": "7", "answers": [{"text": "cat", "answer_start": 5}]}
    path = written(tmp_path / "a.json", squad(wrong, CAT))
    with pytest.raises(
        UserError, match=r"found 'at ' at character 5 instead of 'cat' in question 7"
    ):
        items(path, "question_answering")


@pytest.mark.parametrize(
    ("name", "task", "settings", "count"),
    [
        ("glue/MRPC/train.tsv", "classification",
         {"text_column": "#1 String", "second_text_column": "#2 String", "label_column": "Quality"},
         3667),
        ("glue/SST-2/dev.tsv", "classification", {"text_column": "sentence"}, 872),
        ("glue/CoLA/train.tsv", "classification",
         {"no_header": True, "text_column": "4", "label_column": "2"}, 8551),
        ("glue/STS-B/train.tsv", "regression", {**PAIR, "label_column": "score"}, 5749),
        ("sms_spam/SMSSpamCollection.tsv", "classification",
         {"no_header": True, "text_column": "2", "label_column": "1"}, 5574),
        ("ner/wnut17train.conll", "tagging", {}, 3394),
        ("squad/dev-sample-v1.1.json", "question_answering", {}, 2145),
        (
            "multiple_choice/codah.tsv", "multiple_choice",
            {"no_header": True, "text_column": "2", "label_column": "7",
             "choice_columns": ("3", "4", "5", "6")}, 2776,
        ),
    ],
)  # fmt: skip
def test_published_files_are_read_whole(
    name: str, task: str, settings: dict[str, Any], count: int
) -> None:
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not on this machine")
    assert len(items(DATA / name, task, **settings)) == count
