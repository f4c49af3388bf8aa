"""All optimizers by name, and how much they keep."""

from torch import nn

from bert_core.training.optimization.adamw import AdamW
from bert_core.training.optimization.configuration import OptimizationConfig
from bert_core.training.optimization.lamb import LAMB
from bert_core.training.optimization.muon import Muon
from bert_core.training.optimization.optimizer import Optimizer
from bert_core.training.optimization.parameter_groups import parameter_groups

OPTIMIZERS: dict[str, type[Optimizer]] = {kind.name: kind for kind in (AdamW, LAMB, Muon)}


def build_optimizer(model: nn.Module, config: OptimizationConfig) -> Optimizer:
    """What `config.optimizer` names, AdamW by default; raises ValueError as its class does."""
    return _rule(config)(model, config)


def state_size(model: nn.Module, config: OptimizationConfig) -> int:
    """How many float32 numbers an optimizer keeps of `model`, on all ranks together.

    Known before it is built.
    """
    rule = _rule(config)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    has_average = config.averaging_decay is not None
    return sum(
        (len(rule._moments(group.kind)) + has_average) * sizes[name]
        for group in parameter_groups(model, config, rule._kind)
        for name in group.names
    )


def _rule(config: OptimizationConfig) -> type[Optimizer]:
    return OPTIMIZERS[config.optimizer or AdamW.name]
