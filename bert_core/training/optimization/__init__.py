"""How the weights follow the gradients: optimizers, parameter groups, the schedule."""

from bert_core.training.optimization.configuration import OptimizationConfig, OptimizerName
from bert_core.training.optimization.optimizer import Optimizer
from bert_core.training.optimization.rules import (
    LAMB,
    OPTIMIZERS,
    AdamW,
    Muon,
    build_optimizer,
    state_size,
)
