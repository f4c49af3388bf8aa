"""How the arena is cut into buckets, and who is told when they are complete."""

from collections import defaultdict
from itertools import pairwise

import torch

from bert_core.training import AdamW, OptimizationConfig
from bert_core.training.depth import depths
from bert_core.training.exchange import GradientExchange, bucket_plan, buckets
from tests.bert_core.optimizer_runs import new_model


def test_buckets_cover_the_arena_once_and_stay_below_their_size():
    model = new_model()
    arena = AdamW(model, OptimizationConfig(num_steps=1, layer_decay=0.5)).arena
    depth_of = depths([name for name, _ in model.named_parameters()])
    for size in (1, 5_000, 1 << 30):
        found = buckets(arena, depth_of, size)
        ends = sorted((bucket.begin, bucket.end) for bucket in found)
        assert ends[0][0] == 0
        assert ends[-1][1] == arena.gradients.numel()
        assert all(a[1] == b[0] for a, b in pairwise(ends))
        assert [b.depth for b in found] == sorted((b.depth for b in found), reverse=True)
        for bucket in found:
            inside = [n for n, (b, _) in arena.spans().items() if bucket.begin <= b < bucket.end]
            assert bucket.depth == min(depth_of[n] for n in inside)
            assert len(inside) == 1 or bucket.end - bucket.begin <= size


def test_an_arena_is_cut_once_for_each_size_of_bucket():
    model = new_model()
    arena = AdamW(model, OptimizationConfig(num_steps=1)).arena
    plan = bucket_plan(model, arena, 0.02)
    depth_of = depths([name for name, _ in model.named_parameters()])
    assert plan == tuple(buckets(arena, depth_of, 5_000))
    assert bucket_plan(model, arena, 0.02) is plan
    assert bucket_plan(model, arena, 25.0) != plan


class Told(GradientExchange):
    """Waits for something, and notes which depths it is told of."""

    def __init__(self, model, arena):
        super().__init__(model, arena)
        self._waiting, self.depths = buckets(arena, defaultdict(int), 1), []

    def _send_from(self, depth):
        self.depths.append(depth)


class PlainLayers(torch.nn.Module):
    """An encoder's outline that a compiler can trace."""

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Module()
        self.encoder.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        self.embeddings = torch.nn.Linear(4, 4)

    def loss(self, values):
        hidden = self.embeddings(values)
        for layer in self.encoder.layers:
            hidden = layer(hidden)
        return hidden.sum()


def test_one_compiled_graph_stays_whole_and_sends_at_the_end():
    model = PlainLayers()
    arena = AdamW(model, OptimizationConfig(num_steps=1)).arena
    eager = Told(model, arena)
    with eager.while_backward():
        model.loss(torch.ones(5, 4)).backward()
    assert eager.depths == [3, 2, 1]
    compiled = torch.compile(model.loss, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for num_rows in (5, 6, 7):
            told = Told(model, arena)
            with told.while_backward():
                compiled(torch.ones(num_rows, 4)).backward()
            assert told.depths == []
