"""How the weights follow the gradients: optimizers, parameter groups, the schedule."""

from bert_core.training.optimization.adamw import AdamW
from bert_core.training.optimization.catalogue import OPTIMIZERS, build_optimizer, state_size
from bert_core.training.optimization.configuration import OptimizationConfig, OptimizerName
from bert_core.training.optimization.lamb import LAMB
from bert_core.training.optimization.muon import Muon
from bert_core.training.optimization.optimizer import Optimizer

__all__ = [
    "LAMB", "OPTIMIZERS", "AdamW", "Muon", "OptimizationConfig", "Optimizer",
    "OptimizerName", "build_optimizer", "state_size",
]  # fmt: skip
