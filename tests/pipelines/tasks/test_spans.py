"""Scores of answers against cases worked by hand, as SQuAD's evaluation computes them."""

from dataclasses import replace

import pytest

from bert_core.vocabulary import WordPieceTokenizer
from pipelines.tasks import Items, Reading, family
from pipelines.tasks.scoring import best_threshold, normalized, score_of
from tests.pipelines.tasks.letters import CONFIG, TOKENS


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


def test_the_best_threshold_of_no_answer_is_found() -> None:
    # Leads of "no answer", the score of the span, and whether there is an answer.
    leads = [-3.0, -1.0, 0.5, 2.0]
    scores = [1.0, 0.0, 0.8, 0.0]
    is_answerable = [True, False, True, False]
    # Answering the first alone scores 1 + 1 + 0 + 1, the first three 1 + 0 + 0.8 + 1.
    assert best_threshold(leads, scores, is_answerable) == (-3.0, pytest.approx(3 / 4))
    # Answering none of them may be the best.
    threshold, best = best_threshold(leads, [0.0] * 4, is_answerable)
    assert best == 0.5
    assert all(lead > threshold for lead in leads)
    # Answers with the same lead are given or left out together.
    assert best_threshold([1.0, 1.0], [1.0, 0.0], [True, False])[1] == 0.5


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
