"""Entities as conlleval counts them, answers as SQuAD's evaluation does: worked by hand."""

from dataclasses import replace

import pytest

from bert_core.inference.words import Entity, entities
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.tasks import Answers, Items, Reading, family
from pipelines.tasks.question_answering import normalized, score_of
from pipelines.tasks.scoring import figures_of
from pipelines.tasks.tagging import entity_report, entity_scores
from tests.pipelines.tasks.letters import CONFIG, TOKENS


def entity_figures(answered: list[list[str]], expected: list[list[str]]) -> dict[str, float]:
    return figures_of(entity_scores(answered, expected), len(expected))


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        # IOB2: every entity begins with B.
        ("B-PER I-PER O B-LOC", [(0, 1, "PER"), (3, 3, "LOC")]),
        ("B-PER B-PER", [(0, 0, "PER"), (1, 1, "PER")]),
        # IOB1: B only parts two of a type.
        ("I-PER I-PER O I-LOC", [(0, 1, "PER"), (3, 3, "LOC")]),
        ("I-PER B-PER I-PER", [(0, 0, "PER"), (1, 2, "PER")]),
        ("I-PER I-LOC", [(0, 0, "PER"), (1, 1, "LOC")]),
        # BIOES, and BILOU, which names the same otherwise.
        ("S-PER S-PER", [(0, 0, "PER"), (1, 1, "PER")]),
        ("B-ORG I-ORG E-ORG O S-LOC", [(0, 2, "ORG"), (4, 4, "LOC")]),
        ("B-ORG L-ORG U-ORG", [(0, 1, "ORG"), (2, 2, "ORG")]),
        ("E-PER I-PER", [(0, 0, "PER"), (1, 1, "PER")]),
        # What a model may answer and no scheme allows.
        ("O I-PER O", [(1, 1, "PER")]),
        ("B-PER I-LOC I-LOC", [(0, 0, "PER"), (1, 2, "LOC")]),
        # Types with dashes, nothing.
        ("B-creative-work I-creative-work", [(0, 1, "creative-work")]),
        ("O O", []),
        ("", []),
    ],
)
def test_the_entities_of_a_sentence(tags: str, expected: list[tuple[int, int, str]]) -> None:
    assert list(entities(tags.split())) == [Entity(*each) for each in expected]


def test_an_entity_is_right_where_both_ends_and_its_type_are() -> None:
    expected = [["B-PER", "I-PER", "O", "B-LOC", "O"], ["B-ORG", "I-ORG", "I-ORG"]]
    answered = [["B-PER", "I-PER", "O", "B-ORG", "O"], ["B-ORG", "I-ORG", "O"]]
    # Found 3 (PER 0-1, ORG 3-3, ORG 0-1), there are 3, right is PER alone.
    assert entity_figures(answered, expected) == {
        "eval/precision": pytest.approx(1 / 3),
        "eval/recall": pytest.approx(1 / 3),
        "eval/f1": pytest.approx(1 / 3),
    }
    rows = {row["label"]: row for row in entity_report(answered, expected)}
    assert rows["PER"] == {"label": "PER", "precision": 1, "recall": 1, "f1": 1, "items": 1}
    assert rows["ORG"] == {"label": "ORG", "precision": 0, "recall": 0, "f1": 0, "items": 1}
    assert rows["LOC"]["items"] == 1


def test_equal_entities_of_two_sentences_count_twice_and_schemes_may_differ() -> None:
    iob1, iob2 = [["I-PER", "O"]] * 2, [["B-PER", "O"]] * 2
    assert entity_figures(iob1, iob2)["eval/f1"] == 1.0
    assert entity_figures([["O", "O"]] * 2, iob2) == {
        "eval/precision": 0.0, "eval/recall": 0.0, "eval/f1": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "tags",
    ["PER-B PER-I O", "b-per i-per o", "B_PER I_PER -", "B-PER I-PER -", "B I O", "B-PER PER O"],
)
def test_tags_of_no_published_scheme_are_refused(tags: str) -> None:
    task = family("tagging")
    items = [{"words": ["w"] * 3, "tags": tags.split()}] * 4
    with pytest.raises(UserError, match="are of no scheme that entities are scored by: write O"):
        task.labels(items, items)
    others = [{"words": ["w"] * 3, "tags": ["B-PER", "B-Per", "O"]}]
    with pytest.raises(UserError, match="'B-PER' and 'B-Per' look the same; write them alike"):
        task.labels([*others] * 4, others)


def test_tags_without_prefixes_are_scored_by_words() -> None:
    expected = ["DET", "ADJ", "NOUN", "VERB", "DET", "NOUN", "PUNCT"]
    answered = [*expected[:1], "NOUN", *expected[2:]]
    items = Items([{"words": ["w"] * 7, "tags": expected}])
    figures = family("tagging").figures(Answers([answered], 0), items)
    assert list(figures.values()) == [pytest.approx(6 / 7)] * 4
    report = family("tagging").report(Answers([answered], 0), items)
    assert {row["label"]: row["f1"] for row in report["by_label"]}["NOUN"] == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The Denver Broncos", "denver broncos"),
        ("an  apple,\n a day", "apple day"),
        ("U.S.A.", "usa"),
        ("Theatre and another", "theatre and another"),  # articles are whole words
        ("$2.5 million", "25 million"),
        ("24–10", "24–10"),  # of Unicode's punctuation none is taken away, as published
        ("«Été»", "«été»"),
        ("a.an", "aan"),  # punctuation goes before articles do
        ("THE", ""),
        ("", ""),
    ],
)
def test_case_punctuation_articles_and_white_space_do_not_count(answer: str, expected: str) -> None:
    assert normalized(answer) == expected


@pytest.mark.parametrize(
    ("answered", "references", "exact", "f1"),
    [
        ("Denver Broncos", ["The Denver Broncos!"], 1, 1),
        ("Broncos", ["Denver Broncos"], 0, 2 / 3),  # precision 1, recall 1/2
        ("the big red dog", ["a red dog", "big"], 0, 4 / 5),  # 2 of 3 and 2 of 2 with the first
        ("cat cat", ["cat"], 0, 2 / 3),  # a word counts as often as both have it
        ("cat", ["dog", "cat"], 1, 1),
        ("cat", ["dog"], 0, 0),
        ("", [], 1, 1),  # a question without an answer
        ("cat", [], 0, 0),
        ("", ["cat"], 0, 0),
        ("the", [], 1, 1),  # nothing is left of it
        ("cat", ["the", "cat"], 1, 1),  # a reference of articles alone counts for nothing
        ("", ["the", "cat"], 0, 0),
        ("Straße", ["STRASSE"], 0, 0),  # lower case is no case folding, as published
        ("Ελλάδα", ["ελλάδα"], 1, 1),
    ],
)
def test_the_best_of_the_references_counts(
    answered: str, references: list[str], exact: float, f1: float
) -> None:
    score = score_of(answered, references)
    assert score.exact == exact
    assert score.f1 == pytest.approx(f1)


def test_combining_marks_at_the_end_of_an_answer_count() -> None:
    """An uncased tokenizer drops the marks: the word's one token is its first letter."""
    tokenizer = WordPieceTokenizer([*TOKENS, "म"])
    task = family("question_answering")
    model = task.build_model(replace(CONFIG, vocab_size=tokenizer.vocab_size), ())
    word = {"id": "", "question": "a", "context": "में", "answers": ["में"], "starts": [0]}
    items = Items([task.item(word)])
    answers = task.answers(model, tokenizer, items, Reading(CONFIG.max_position_embeddings))
    assert answers.values[0]["text"] == "में"
    assert task.figures(answers, items)["eval/exact_match"] == 1
