"""What follows from the settings of a fine-tuning."""

from typing import Any

import pytest

from pipelines.errors import UserError
from pipelines.recipes.files import read_recipe
from pipelines.stages.dataset.items import validation_parts
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.finetuning.training import check_settings, evaluation_interval
from pipelines.tasks import Items, family


@pytest.mark.parametrize(
    ("num_steps", "asked", "evaluated_at"),
    [
        (10, 5, [2, 4, 6, 8, 10]),
        (11, 2, [6, 11]),
        (14, 5, [3, 6, 9, 12, 14]),  # every 2 steps would be seven evaluations
        (3, 5, [1, 2, 3]),
        (1, 1, [1]),
    ],
)
def test_there_are_never_more_evaluations_than_were_asked_for(
    num_steps: int, asked: int, evaluated_at: list[int]
) -> None:
    every = evaluation_interval(num_steps, FinetuningSettings(num_evaluations=asked))
    steps = range(1, num_steps + 1)
    assert [step for step in steps if step % every == 0 or step == num_steps] == evaluated_at


@pytest.mark.parametrize(
    ("family_name", "values", "message"),
    [
        ("regression", {"long_texts": "windows"}, "a regression model reads"),
        ("tagging", {"pooling": "mean"}, "head of a token_classification model"),
    ],
)
def test_what_does_not_fit_the_task_is_refused_before_a_run(
    family_name: str, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_settings(FinetuningSettings.model_validate(values), family(family_name).model)


def test_more_frozen_layers_than_there_are_is_a_fault_of_the_recipe() -> None:
    with pytest.raises(UserError, match="at most the 2 layers of an encoder of size tiny, got 3"):
        read_recipe("demo", ["finetuning.freeze_layers=3"])
    read_recipe("demo", ["finetuning.freeze_layers=2"])


def test_validation_items_are_of_no_group_that_is_learned_from() -> None:
    task = family("classification")
    rows = [
        {"text": f"Text {number % 700}", "second_text": None, "label": "ab"[number % 2]}
        for number in range(1400)
    ]
    learned, validated = validation_parts(Items(rows, ("a", "b")), task, 140, seed=3)
    assert learned.labels == validated.labels == ("a", "b")
    assert len(learned.rows) + len(validated.rows) == 1400
    assert 100 < len(validated.rows) < 180
    assert not {item["text"] for item in learned.rows} & {item["text"] for item in validated.rows}
    again = validation_parts(Items(rows, ("a", "b")), task, 140, seed=3)
    assert again == (learned, validated)
    assert validation_parts(Items(rows, ("a", "b")), task, 140, seed=4) != again


@pytest.mark.parametrize(
    ("num_items", "count", "expected"),
    [
        (999, "auto", (0, 0)),
        (1000, "auto", (70, 130)),
        (30_000, "auto", (70, 130)),
        (600, 0, (0, 0)),
        (600, 10_000, (250, 350)),
        (60, 10, (2, 20)),
    ],
)
def test_so_many_items_are_for_validation(
    num_items: int, count: Any, expected: tuple[int, int]
) -> None:
    rows = [
        {"text": f"Text {number}", "second_text": None, "label": "ab"[number % 2]}
        for number in range(num_items)
    ]
    _, validated = validation_parts(Items(rows, ()), family("classification"), count, seed=0)
    least, most = expected
    assert least <= len(validated.rows) <= most
