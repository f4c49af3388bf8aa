"""The learning rate that follows an encoder's size, and where a recipe asks for it."""

import pytest

from bert_core.config import SIZES, EncoderConfig, encoder_config
from pipelines.errors import UserError
from pipelines.recipes.files import read_recipe
from pipelines.stage import Progress
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.train.settings import automatic_rate, resolved_rate

BASE, TINY = (encoder_config(size, 100) for size in ("base", "tiny"))
SIX_LAYERS = EncoderConfig(
    vocab_size=30_522, hidden_size=384, num_layers=6, num_attention_heads=12,
    intermediate_size=1536,
)  # fmt: skip


def test_base_learns_at_the_paper_s_rates_and_tiny_at_the_demo_s() -> None:
    assert automatic_rate("finetuning", BASE) == 5e-5
    assert automatic_rate("pretraining", BASE) == 5e-5
    demo = read_recipe("demo")
    assert automatic_rate("finetuning", TINY) == demo.finetuning.learning_rate == 1e-3
    assert automatic_rate("pretraining", TINY) == 5e-4
    smallest = encoder_config("tiny", 100, hidden_size=16, num_attention_heads=2)
    assert automatic_rate("finetuning", smallest) == 1e-3


@pytest.mark.parametrize("use", ["pretraining", "finetuning"])
def test_a_larger_encoder_never_learns_faster(use) -> None:
    shapes = sorted((encoder_config(size, 100) for size in SIZES), key=_size)
    rates = [automatic_rate(use, shape) for shape in shapes]
    assert rates == sorted(rates, reverse=True)
    between = automatic_rate(use, SIX_LAYERS)
    assert automatic_rate(use, BASE) < between < automatic_rate(use, TINY) / 3


def _size(config: EncoderConfig) -> int:
    return config.num_layers * config.hidden_size


def test_what_auto_comes_to_is_told_and_a_number_is_left_alone() -> None:
    told: list[Progress] = []
    assert resolved_rate("auto", "finetuning", SIX_LAYERS, told.append) == 1.6e-4
    assert "learning_rate=auto is 0.00016" in told[0].note
    assert "6 layers of width 384" in told[0].note
    assert resolved_rate(2e-5, "finetuning", SIX_LAYERS, told.append) == 2e-5
    assert len(told) == 1


def test_a_rate_that_undoes_what_was_learned_gets_a_note() -> None:
    notes: list[Progress] = []
    assert resolved_rate(2e-3, "pretraining", TINY, notes.append) == 2e-3
    assert not notes
    assert resolved_rate(5e-3, "pretraining", TINY, notes.append) == 5e-3
    assert "learning_rate=0.005 is 10 times what auto sets" in notes[0].note
    # Fine-tuning has a new head to learn, and searches try what they like.
    assert resolved_rate(1e-2, "finetuning", BASE, notes.append) == 1e-2
    assert len(notes) == 1


def test_the_default_rate_is_that_of_new_weights_or_of_the_encoder() -> None:
    assert PretrainingSettings(size="mini").learning_rate == 1e-3
    assert PretrainingSettings(encoder="models:/name/1").learning_rate == "auto"
    assert PretrainingSettings(encoder="models:/name/1", learning_rate=1e-4).learning_rate == 1e-4


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["pretraining.learning_rate=auto"],
            "learning_rate=auto is for continuing from an encoder",
        ),
        (["finetuning.learning_rate=0"], "must be greater than 0 or 'auto', got 0"),
        (
            ["finetuning.learning_rate=auto", "finetuning.optimizer=lamb"],
            "learning_rate=auto is for adamw and muon",
        ),
    ],
)
def test_a_rate_that_cannot_be_is_one_sentence(overrides: list[str], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        read_recipe("demo", overrides)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
