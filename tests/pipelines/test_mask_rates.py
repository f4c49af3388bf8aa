"""The rate of dynamic masks over a run: a pure function of the step, refused where masks stay."""

import numpy as np
import pytest
import torch

from pipelines.errors import UserError
from pipelines.recipes.files import read_recipe
from pipelines.stages.examples.batches import ExampleReader, micro_batches
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.pretraining.settings import PretrainingSettings


def masking(step: int, own: float = 0.15, **values):
    settings = PretrainingSettings(num_steps=11, **values)
    return settings.masking_at(step, ExampleSettings(mask_fraction=own).masking_config())


def test_without_a_word_the_rate_is_the_examples_own():
    assert masking(7, own=0.2).fraction == 0.2
    assert masking(7, own=0.2, mask_fraction=0.4).fraction == 0.4


def test_the_rate_goes_from_the_first_to_the_last_step_in_a_line():
    falling = {"mask_fraction": 0.3, "final_mask_fraction": 0.1}
    rates = [masking(step, **falling).fraction for step in (0, 5, 10)]
    assert rates == pytest.approx([0.3, 0.2, 0.1])
    assert masking(10, own=0.2, final_mask_fraction=0.4).fraction == pytest.approx(0.4)
    assert masking(0, own=0.2, final_mask_fraction=0.4).fraction == 0.2
    alone = PretrainingSettings(num_steps=1, mask_fraction=0.3, final_mask_fraction=0.1)
    assert alone.masking_at(0, ExampleSettings().masking_config()).fraction == 0.3


def test_a_rate_changes_how_many_are_masked_and_nothing_else(small_examples):
    reader = ExampleReader(small_examples, "train")

    def step_of(rate: float | None):
        masks = None
        if rate is not None:
            masks = PretrainingSettings(mask_fraction=rate).masking_at(
                0, reader.settings.masking_config()
            )
        return dict(
            micro_batches(
                reader, seed=0, step=3, global_batch_size=20, micro_batch_size=20, masking=masks
            )
        )[0]

    own, same, more = step_of(None), step_of(0.15), step_of(0.3)
    assert torch.equal(own.tokens.input_ids, same.tokens.input_ids)
    assert more.tokens.lengths == own.tokens.lengths
    # The same draws in the same order: a higher rate takes up those of a lower one.
    assert np.isin(own.masked_positions, more.masked_positions).all()
    lengths = own.tokens.lengths
    assert len(more.masked_positions) == sum(max(1, round(0.3 * length)) for length in lengths)


@pytest.mark.parametrize(
    "overrides",
    [
        ["examples.masking=static", "pretraining.mask_fraction=0.2"],
        ["examples.objective=clm", "pretraining.final_mask_fraction=0.2"],
    ],
)
def test_rates_without_dynamic_masks_are_refused_when_the_recipe_is_read(overrides):
    with pytest.raises(UserError, match=r"mask_fraction needs masks that training draws itself"):
        read_recipe("demo", overrides)
