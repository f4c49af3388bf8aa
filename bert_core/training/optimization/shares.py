"""Which rank holds the optimizer's state for which part of the arena, and updates it.

Cut between parameters: LAMB's trust ratio and Muon's orthogonalization are of whole matrices, so
that every optimizer computes for its share what it would compute for all. The price is that no
share is smaller than the largest table allows.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from bert_core.training.arena import ParameterArena
from bert_core.training.ranks import num_ranks, this_rank


class Shares:
    """A part of the arena for each rank, as equal as parameters go; or all of it for every rank."""

    def __init__(self, arena: ParameterArena, *, is_sharded: bool) -> None:
        self.is_sharded = is_sharded and num_ranks() > 1
        if self.is_sharded:
            ends = [end for _, end in arena.spans().values()]
            self.spans = cut(ends, num_ranks())
            self.begin, self.end = self.spans[this_rank()]
        else:
            self.begin, self.end = 0, arena.values.numel()
            self.spans = [(self.begin, self.end)]

    def exchange(self, buffer: Tensor) -> None:
        """Fill a buffer of the arena's layout: each rank hands its own share to the others."""
        if not self.is_sharded:
            return
        sent = [
            dist.broadcast(buffer[begin:end], rank, async_op=True)
            for rank, (begin, end) in enumerate(self.spans)
            if end > begin
        ]
        for work in sent:
            work.wait()

    def gathered(
        self, arena: ParameterArena, own: dict[str, Tensor], *, is_wanted: bool
    ) -> dict[str, Tensor]:
        """What all ranks hold by parameter, on the CPU; `own` where nothing is divided.

        All ranks call it; one where it is not wanted keeps no tensor of it.
        """
        if not self.is_sharded:
            return own
        whole: dict[str, Tensor] = {}
        for rank, (begin, end) in enumerate(self.spans):
            share = torch.zeros_like(arena.values[begin:end])
            views = arena.views(share, begin)
            if rank == this_rank():
                for name, values in own.items():
                    views[name].copy_(values)
            if share.numel():
                dist.broadcast(share, rank)
            if is_wanted:
                whole |= {name: view.to("cpu", copy=True) for name, view in views.items()}
        return whole


def cut(ends: list[int], num_shares: int) -> list[tuple[int, int]]:
    """`num_shares` spans that follow each other, each ending at one of the rising `ends`."""
    spans = []
    begin = 0
    for number in range(1, num_shares + 1):
        wanted = ends[-1] * number / num_shares
        _, nearest = min((abs(end - wanted), end) for end in ends)
        end = max(begin, nearest)
        spans.append((begin, end))
        begin = end
    return spans
