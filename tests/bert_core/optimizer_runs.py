"""Models with an optimizer for its tests, and gradients that every model gets alike."""

import torch

from bert_core.model.catalogue import PretrainingModel
from bert_core.training.optimization import build_optimizer
from bert_core.training.optimizer import OptimizationConfig
from tests.bert_core.batches import small_config

NUM_STEPS, RATE, DECAY = 50, 5e-3, 0.1


def new_model():
    torch.manual_seed(0)
    return PretrainingModel(small_config())


def new_run(name, **settings):
    model = new_model()
    config = OptimizationConfig(
        optimizer=name, num_steps=NUM_STEPS, learning_rate=RATE, weight_decay=DECAY, **settings
    )
    return model, build_optimizer(model, config)


def draw_gradients(model, step):
    """Fill the gradients of `model` as every model's at this step."""
    generator = torch.Generator().manual_seed(step)
    for name, parameter in sorted(model.named_parameters()):
        if parameter.grad is not None:
            scale = 10.0 ** (len(name) % 4 - 3)  # of different sizes
            parameter.grad.copy_(torch.randn(parameter.shape, generator=generator) * scale)
