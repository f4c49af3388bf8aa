"""What a recipe says of the optimizer is what the optimizer is told; defaults are as ever."""

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from bert_core.training.optimizer_settings import OptimizationConfig
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.training.settings import TrainingSettings
from pipelines.training.worker import optimization


def config_of(settings: TrainingSettings, **more: Any):
    training: Any = SimpleNamespace(
        settings=settings, num_steps=100, **{"layer_decay": 1.0, "rate_scales": {}, **more}
    )
    return optimization(training)


@pytest.mark.parametrize(
    "settings", [PretrainingSettings(), FinetuningSettings(learning_rate=2e-4)]
)
def test_by_default_it_is_adamw_without_anything_new(settings):
    assert config_of(settings) == OptimizationConfig(
        optimizer="adamw", num_steps=100, learning_rate=settings.learning_rate, warmup_steps=10
    )


def test_every_setting_reaches_the_optimizer():
    settings = FinetuningSettings(
        learning_rate=2e-4, optimizer="muon", averaging_decay=0.99, exchange_dtype="bf16",
        layer_decay=0.8,
        schedule="warmup_stable_decay", decay_fraction=0.5, betas=(0.8, 0.98), muon_momentum=0.9,
        embeddings_rate=20.0,
    )  # fmt: skip
    found = config_of(settings, layer_decay=settings.layer_decay, rate_scales=settings.rate_scales)
    assert found == OptimizationConfig(
        num_steps=100, learning_rate=settings.learning_rate, warmup_steps=10, optimizer="muon",
        averaging_decay=0.99, exchange_dtype="bf16", layer_decay=0.8,
        schedule="warmup_stable_decay", decay_fraction=0.5, betas=(0.8, 0.98), muon_momentum=0.9,
        rate_scales={"*embeddings.*": 20.0},
    )  # fmt: skip


@pytest.mark.parametrize(
    "values",
    [
        {"optimizer": "sgd"},
        {"averaging_decay": 1.0},
        {"exchange_dtype": "fp8"},
        {"layer_decay": 0},
        {"embeddings_rate": 0},
        {"schedule": "square"},
        {"decay_fraction": 0},
        {"betas": [0.9]},
        {"betas": [0.9, 1.0]},
        {"muon_momentum": 1.0},
    ],
)
def test_impossible_settings_are_refused(values):
    with pytest.raises(ValidationError):
        FinetuningSettings(**values)
