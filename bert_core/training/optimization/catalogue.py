"""All optimizers by name."""

from torch import nn

from bert_core.training.optimization.adamw import AdamW
from bert_core.training.optimization.configuration import OptimizationConfig
from bert_core.training.optimization.lamb import LAMB
from bert_core.training.optimization.muon import Muon
from bert_core.training.optimization.optimizer import Optimizer

OPTIMIZERS: dict[str, type[Optimizer]] = {kind.name: kind for kind in (AdamW, LAMB, Muon)}


def build_optimizer(model: nn.Module, config: OptimizationConfig) -> Optimizer:
    """What `config.optimizer` names, AdamW by default; raises ValueError as its class does."""
    return OPTIMIZERS[config.optimizer or AdamW.name](model, config)
