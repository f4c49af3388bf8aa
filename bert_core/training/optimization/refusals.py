"""What an optimizer is not built for: another rule's config, models that something wraps."""

from torch import nn


def refuse_other_optimizer(name: str, named: str | None) -> None:
    """Raise ValueError where the config of the optimizer `name` says another, `named`."""
    if named not in (None, name):
        raise ValueError(
            f"an optimizer must be the one that its config names, found {name} with "
            f"optimizer={named!r}; leave optimizer out of the config, or call build_optimizer"
        )


# By name: importing them would bring what most trainings do not need.
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule")


def refuse_wrapped(model: nn.Module) -> None:
    """Raise ValueError where FSDP or DDP wraps `model`, or a parameter is a DTensor."""
    found = next((name for module in model.modules() for name in _wrappers(module)), None)
    if found is None:
        divided = (name for name, p in model.named_parameters() if _is_a(p, "DTensor"))
        found = next((f"{name} as a DTensor" for name in divided), None)
    if found:
        raise ValueError(
            f"an optimizer must be given the model itself, found {found}; hand over the model "
            "without a wrapper on each rank: the step adds gradients up over the ranks, divided "
            "by the counts of all of them, where a wrapper would average means, and holds all "
            "parameters in one buffer (shard_optimizer_state=True divides what is kept of them)"
        )


def _wrappers(module: nn.Module) -> list[str]:
    return [name for name in _WRAPPERS if _is_a(module, name)]


def _is_a(thing: object, name: str) -> bool:
    return any(
        kind.__name__ == name and kind.__module__.startswith("torch.")
        for kind in type(thing).__mro__
    )
