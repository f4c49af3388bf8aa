"""What follows from the settings of a fine-tuning."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.errors import UserError
from pipelines.recipes.files import read_recipe
from pipelines.stages.dataset.items import validation_parts
from pipelines.stages.finetuning import stage as finetuning_stage
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
    ("num_items", "per_group", "count", "expected"),
    [
        (600, 1, 0, 0), (600, 1, 100, 100), (600, 1, 10_000, 300), (60, 1, 10, 10),
        (1200, 7, 100, 105), (1200, 200, 100, 200), (1200, 300, 100, 0), (1200, 700, 400, 500),
        (10, 10, 3, 0),
    ],
)  # fmt: skip
def test_so_many_items_of_whole_groups_are_for_validation(
    num_items: int, per_group: int, count: int, expected: int
) -> None:
    rows = [
        {"text": f"Text {number // per_group}", "second_text": None, "label": "ab"[number % 2]}
        for number in range(num_items)
    ]
    learned, validated = validation_parts(Items(rows), family("classification"), count, seed=0)
    assert len(validated.rows) == expected
    assert len(learned.rows) + len(validated.rows) == num_items


def test_validation_items_are_of_none_of_the_groups_that_a_column_names() -> None:
    rows = [
        {"text": f"Text {number}", "second_text": None, "label": "ab"[number % 2]}
        for number in range(1000)
    ]
    numbers = [number % 40 for number in range(1000)]
    items, task = Items(rows, ("a", "b")), family("classification")
    parts = validation_parts(items, task, 100, 0, numbers)
    groups = [{int(item["text"].split()[1]) % 40 for item in part.rows} for part in parts]
    assert len(parts[1].rows) == 100 and not groups[0] & groups[1]
    by_text = validation_parts(items, task, 100, 0)
    groups = [{int(item["text"].split()[1]) % 40 for item in part.rows} for part in by_text]
    assert groups[0] & groups[1]


def test_a_class_that_no_other_item_has_is_learned() -> None:
    rows = [
        {"text": f"Text {number}", "second_text": None, "label": f"class {number}"}
        for number in range(40)
    ]
    learned, validated = validation_parts(Items(rows), family("classification"), 10, seed=0)
    assert (len(learned.rows), len(validated.rows)) == (40, 0)


@pytest.mark.parametrize(
    ("family_name", "num_items", "settings", "expected"),
    [
        ("classification", 999, {}, 0), ("classification", 1000, {}, 100),
        ("classification", 1000, {"long_texts": "windows"}, 0),
        ("tagging", 5000, {}, 100), ("regression", 5000, {}, 0),
        ("regression", 5000, {"patience": 2}, 500), ("classification", 90, {"patience": 2}, 9),
        ("classification", 10**6, {"patience": 2}, 1000),
        ("sentence_embedding", 5000, {"validation_items": 50}, 50),
    ],
)  # fmt: skip
def test_auto_takes_items_where_they_say_something(
    family_name: str, num_items: int, settings: dict[str, Any], expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(finetuning_stage, "family_of", lambda _: family(family_name))
    dataset: Any = SimpleNamespace(statistics={"items": {"train": num_items}})
    asked = FinetuningSettings.model_validate(settings)
    assert finetuning_stage._num_validated(asked, dataset) == expected
