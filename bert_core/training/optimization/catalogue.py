"""All optimizers by name, and what they keep before they are built."""

from itertools import accumulate
from typing import NamedTuple

from torch import nn

from bert_core.training.arena import padded
from bert_core.training.optimization.adamw import AdamW
from bert_core.training.optimization.configuration import OptimizationConfig
from bert_core.training.optimization.lamb import LAMB
from bert_core.training.optimization.muon import Muon
from bert_core.training.optimization.optimizer import Optimizer
from bert_core.training.optimization.parameter_groups import parameter_groups
from bert_core.training.optimization.shares import cut

OPTIMIZERS: dict[str, type[Optimizer]] = {kind.name: kind for kind in (AdamW, LAMB, Muon)}


def build_optimizer(model: nn.Module, config: OptimizationConfig) -> Optimizer:
    """What `config.optimizer` names, AdamW by default; raises ValueError as its class does."""
    return _rule(config)(model, config)


class StateSize(NamedTuple):
    """Float32 numbers for each one that is trained."""

    held: float  # by a rank, all the time
    sent: float  # more on a rank while a save gathers
    whole: float  # of all ranks together


def state_size(
    model: nn.Module, config: OptimizationConfig, *, num_ranks: int, num_together: int = 1
) -> StateSize:
    """What an optimizer keeps of `model`, told before it is built.

    Of a divided state: the mean of the `num_together` largest shares, those of ranks that share
    one memory at the worst.
    """
    rule = _rule(config)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    kept, places = [], []
    for group in parameter_groups(model, config, rule._kind):
        num_buffers = len(rule._moments(group.kind)) + (config.averaging_decay is not None)
        kept += [num_buffers * sizes[name] for name in group.names]
        places += [padded(sizes[name]) for name in group.names]
    num_trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    whole = sum(kept) / num_trained
    if not config.shard_optimizer_state or num_ranks == 1:
        return StateSize(whole, 0.0, whole)
    ends = list(accumulate(places))
    spans = cut(ends, num_ranks)
    shares = sorted(
        sum(k for k, place in zip(kept, ends, strict=True) if begin < place <= end)
        for begin, end in spans
    )
    held = sum(shares[-num_together:]) / num_together / num_trained
    return StateSize(held, max(end - begin for begin, end in spans) / num_trained, whole)


def _rule(config: OptimizationConfig) -> type[Optimizer]:
    return OPTIMIZERS[config.optimizer or AdamW.name]
