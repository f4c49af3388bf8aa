"""What a recipe says of the optimizer is what the optimizer is told; defaults are as ever."""

from types import SimpleNamespace
from typing import Any

from bert_core.training.optimizer import OptimizationConfig
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.train.settings import TrainingSettings
from pipelines.train.worker import optimization


def config_of(settings: TrainingSettings, **more: Any):
    training: Any = SimpleNamespace(
        settings=settings, num_steps=100, **{"layer_decay": 1.0, "embeddings_rate": 1.0, **more}
    )
    return optimization(training)


def test_every_setting_reaches_the_optimizer():
    settings = FinetuningSettings(
        learning_rate=2e-4, optimizer="muon", exchange_dtype="bf16", layer_decay=0.8,
        schedule="warmup_stable_decay", decay_fraction=0.5, betas=(0.8, 0.98), muon_momentum=0.9,
        embeddings_rate=20.0,
    )  # fmt: skip
    config = config_of(
        settings, layer_decay=settings.layer_decay, embeddings_rate=settings.embeddings_rate
    )
    assert config == OptimizationConfig(
        num_steps=100, learning_rate=settings.learning_rate, warmup_steps=10, optimizer="muon",
        exchange_dtype="bf16", layer_decay=0.8,
        schedule="warmup_stable_decay", decay_fraction=0.5, betas=(0.8, 0.98), muon_momentum=0.9,
        embeddings_rate=20.0,
    )  # fmt: skip
