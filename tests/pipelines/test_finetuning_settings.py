"""What follows from the settings of a fine-tuning."""

import pytest

from pipelines.stages.finetuning.settings import FinetuningSettings


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
    every = FinetuningSettings(num_evaluations=asked).evaluate_every_steps(num_steps)
    steps = range(1, num_steps + 1)
    assert [step for step in steps if step % every == 0 or step == num_steps] == evaluated_at
