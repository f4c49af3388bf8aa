"""Labels that are probably wrong are found by what has not learned them."""

import numpy as np
import pytest

from pipelines.errors import UserError
from pipelines.tasks import Items
from pipelines.tasks.suspects import suspects
from pipelines.tasks.tfidf import class_probabilities

WORDS = {  # of a topic each, in four scripts
    "food": ["soup", "хлеб", "चावल", "ごはん", "salt", "oven"],
    "music": ["drum", "песня", "गीत", "うたう", "choir", "tune"],
    "ships": ["mast", "якорь", "नाव", "ふねに", "harbour", "sail"],
}
LABELS = tuple(sorted(WORDS))


def planted(num_items: int = 300, share: int = 20) -> tuple[Items, set[int]]:
    """Texts of three topics; the label of every `share`th is of another one."""
    random = np.random.default_rng(0)
    rows, wrong = [], set(range(7, num_items, share))
    for place in range(num_items):
        label = LABELS[place % 3]
        words = random.choice(WORDS[label], 4)
        given = LABELS[(place + 1) % 3] if place in wrong else label
        rows.append({"text": " ".join(words), "second_text": None, "label": given})
    return Items(rows, LABELS), wrong


def apart(items: Items) -> list[str]:
    """Groups in which every item is alone."""
    return [str(place) for place in range(len(items.rows))]


def test_wrong_labels_come_first_with_the_right_one_beside_them() -> None:
    items, wrong = planted()
    (first, *_), rows = (suspects(items, apart(items), None, count) for count in (1, len(wrong)))
    assert {row.row for row in rows} == wrong
    assert all(row.label == items.rows[row.row]["label"] for row in rows)
    assert all(row.suggestion == LABELS[row.row % 3] for row in rows)
    assert first == rows[0] and first.probability < 0.1
    assert [row.probability for row in rows] == sorted(row.probability for row in rows)


def test_right_labels_are_no_suspects_however_many_are_asked_for() -> None:
    items, wrong = planted()
    assert {row.row for row in suspects(items, apart(items), None, 300)} == wrong


def test_a_class_that_no_judge_has_learned_is_not_suspected() -> None:
    items, wrong = planted()
    others = [{"text": "quark", "second_text": None, "label": "physics"}] * 4
    rare = Items([*items.rows, *others], (*LABELS, "physics"))
    groups = [*apart(items), *["physics"] * 4]
    assert {row.row for row in suspects(rare, groups, None, 300)} == wrong


def test_the_order_of_the_rows_changes_nothing() -> None:
    items, _ = planted()
    order = np.random.default_rng(1).permutation(len(items.rows))
    mixed = items._replace(rows=[items.rows[place] for place in order])
    rows = suspects(items, apart(items), None, 20)
    moved = suspects(mixed, [str(place) for place in order], None, 20)
    assert [row.row for row in rows] == [order[row.row] for row in moved]
    assert np.allclose([row.probability for row in rows], [row.probability for row in moved])


def test_the_vectors_of_an_encoder_know_what_words_do_not() -> None:
    random = np.random.default_rng(1)
    rows = [
        {"text": f"w{place}", "second_text": None, "label": "ab"[place % 2]} for place in range(200)
    ]
    vectors = np.array([[1.0, 0.0], [0.0, 1.0]])[np.arange(200) % 2] + random.normal(
        0, 0.1, (200, 2)
    )
    rows[50]["label"] = "b"
    items = Items(rows, ("a", "b"))
    first = suspects(items, apart(items), vectors, 3)[0]
    assert first.row == 50 and first.suggestion == "a"


def test_a_class_that_a_fold_lacks_and_texts_without_words_are_no_error() -> None:
    items, _ = planted(60)
    rows = [*items.rows, {"text": "???", "second_text": None, "label": "ships"}]
    rare = Items([*rows, {"text": "mast", "second_text": None, "label": "rare"}], (*LABELS, "rare"))
    assert suspects(rare, apart(rare), np.zeros((62, 2)), 5)
    nothing = Items(
        [{"text": "?", "second_text": None, "label": label} for label in "ab" * 10], ("a", "b")
    )
    assert class_probabilities(nothing, nothing) == pytest.approx(np.full((20, 2), 0.5))


def test_probabilities_are_those_of_classes_in_the_order_of_their_names() -> None:
    items, _ = planted()
    probabilities = class_probabilities(items, items)
    assert probabilities.sum(axis=1) == pytest.approx(np.ones(300))
    right = [
        LABELS[place % 3] == LABELS[best] for place, best in enumerate(probabilities.argmax(1))
    ]
    assert np.mean(right) > 0.95


def test_fewer_than_five_different_items_are_too_few_to_judge_by() -> None:
    items, _ = planted(5)
    suspects(items, apart(items), None, 5)
    with pytest.raises(UserError, match="needs at least 5 that differ, found 4; give a file"):
        suspects(items, ["a", "b", "c", "d", "d"], None, 5)
