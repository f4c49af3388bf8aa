"""What is tried before a model of one's own: scikit-learn's, and what is counted here."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pipelines.tasks import FAMILIES, Answers, Items, family, tfidf
from tests.pipelines.tasks.letters import TASKS, parts

# Single letters: what a bag of them knows, and what only their places or their kinds tell.
LEARNED = {"classification": 0.9, "multi_label": 0.7, "regression": 0.7, "multiple_choice": 0.9}


def learned(name: str, train: Items, heldout: Items) -> dict[str, Any]:
    return dict(family(name).baselines(train, heldout))


def texts_of(labels: Sequence[str], seed: int, size: int) -> list[dict[str, Any]]:
    """Texts of invented words, a third of which go with the label."""
    random, rows = np.random.default_rng(seed), []
    for number in range(size):
        place = number % len(labels)
        common = [f"word{index}" for index in random.integers(0, 40, 8)]
        own = [f"{labels[place]}{index}" for index in random.integers(0, 30, 2)]
        words = random.permutation([*common, *own]).tolist()
        rows.append({"text": " ".join(words), "second_text": None, "label": labels[place]})
    return rows


def test_tfidf_is_what_scikit_learn_makes_of_the_same_texts() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    labels = ("a", "b", "c")
    train, heldout = texts_of(labels, 0, 240), texts_of(labels, 1, 90)
    plain = make_pipeline(
        TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2),
        LogisticRegression(C=10, max_iter=1_000),
    )
    plain.fit([row["text"] for row in train], [row["label"] for row in train])
    expected = plain.predict([row["text"] for row in heldout]).tolist()
    said = learned("classification", Items(train, labels), Items(heldout, labels))
    assert said["TF-IDF"] == expected
    right = sum(a == row["label"] for a, row in zip(expected, heldout, strict=True))
    assert 0.5 < right / len(heldout) < 1.0


def test_characters_tell_what_words_without_marks_cannot() -> None:
    places = ("घर", "बात", "दिन", "रात")
    rows = [
        {"text": f"हिन्दी फिल्म अच्छी {word} में है {place}", "second_text": None, "label": word}
        for word in ("की", "के")
        for place in places * 10
    ]
    items = Items(rows, ("की", "के"))
    answers = learned("classification", items, items)
    right = {
        name: sum(a == row["label"] for a, row in zip(values, rows, strict=True))
        for name, values in answers.items()
    }
    assert right == {"TF-IDF": 40, "TF-IDF of characters": 80}


@pytest.mark.parametrize("name", TASKS)
def test_a_family_has_baselines_that_its_scores_take(name: str) -> None:
    task, (train, heldout) = family(name), parts(name)
    found = learned(name, train, heldout)
    assert found
    assert json.dumps(found) == json.dumps(learned(name, train, heldout))
    for values in found.values():
        assert len(values) == len(heldout.rows)
        figures = task.figures(Answers(list(values), 0), heldout)
        assert figures[task.score] >= LEARNED.get(name, -1.0)
    assert task.guess


def test_rare_labels_are_given_from_where_the_f1_of_what_is_drawn_is_best() -> None:
    random = np.random.default_rng(0)
    for rarity in (0.5, 2.0, 4.0):
        probabilities = random.random((3000, 8)) ** rarity
        are_there = random.random(probabilities.shape) < probabilities
        scores = []
        for least in (tfidf._threshold(probabilities), *np.arange(1, 100) / 100):
            given = probabilities >= least
            scores.append(2 * (given & are_there).sum() / (given.sum() + are_there.sum()))
        assert scores[0] > max(scores) - 0.004
    assert tfidf._threshold(np.eye(2)) == 0.5


@pytest.mark.parametrize("name", ["classification", "multi_label", "regression"])
def test_nothing_of_the_heldout_items_is_learned(name: str) -> None:
    train, heldout = parts(name)
    silent = [{**row, "label": "none", "labels": [], "value": 0.0} for row in heldout.rows]
    assert learned(name, train, heldout) == learned(name, train, heldout._replace(rows=silent))


@pytest.mark.parametrize("name", ["classification", "multi_label", "regression"])
def test_texts_without_a_character_have_no_baseline(name: str) -> None:
    rows = [
        {"text": " ", "second_text": None, "label": label, "labels": [label], "value": value}
        for label, value in (("a", 1.0), ("b", 2.0), ("a", 1.0), ("b", 2.0))
    ]
    assert learned(name, Items(rows, ("a", "b")), Items(rows[:1], ("a", "b"))) == {}


def test_a_word_has_its_most_frequent_tag_and_an_unknown_one_is_outside() -> None:
    words, tags = ["Ada", "met", "Bea"], ["B-PER", "O", "B-PER"]
    train = [{"words": words, "tags": tags}] * 2 + [{"words": ["Bea"], "tags": ["B-LOC"]}]
    asked = {"words": ["Bea", "met", "Cid"], "tags": tags}
    assert learned("tagging", Items(train), Items([asked])) == {
        "most frequent tag": [["B-PER", "O", "O"]]
    }


def test_the_sentence_that_shares_most_words_answers() -> None:
    context = "Rain fell in March.\nThe mill burned down in April! Nobody rebuilt the bridge."
    asked = {
        "id": "", "question": "What burned in April?", "context": context, "answers": ["The mill"],
        "starts": [context.index("The mill")],
    }  # fmt: skip
    ((answer,),) = learned("question_answering", Items([asked]), Items([asked])).values()
    assert answer["text"] == "The mill burned down in April!"
    assert context[answer["begin"] :].startswith(answer["text"])


def test_cosines_follow_shared_words() -> None:
    texts = [("a b c d", "a b c d", 1.0), ("a b c d", "a b x y", 0.5), ("a b c d", "x y z w", 0.0)]
    rows = [
        {"text": first, "second_text": second, "value": value} for first, second, value in texts
    ]
    cosines = learned("sentence_embedding", Items(rows), Items(rows))["TF-IDF cosine"]
    assert cosines[0] == pytest.approx(1.0)
    assert cosines[0] > cosines[1] > cosines[2]


def test_naming_the_families_imports_no_learner() -> None:
    asked = "import sys, pipelines.recipes.recipe, pipelines.tasks as tasks\n" + "".join(
        f"tasks.family({name!r})\n" for name in FAMILIES
    )
    subprocess.run(
        [sys.executable, "-c", asked + "assert 'sklearn' not in sys.modules"], check=True
    )
