"""How the arena is cut into buckets, and when they are complete."""

from itertools import pairwise

import torch

from bert_core.training import exchange
from bert_core.training.exchange import GradientExchange, buckets
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer_settings import OptimizationConfig
from tests.bert_core.optimizer_runs import new_model


def test_buckets_cover_the_arena_once_and_stay_below_their_size():
    model = new_model()
    arena = AdamW(model, OptimizationConfig(num_steps=1, layer_decay=0.5)).arena
    names = [name for name, _ in model.named_parameters()]
    for size in (1, 5_000, 1 << 30):
        found = buckets(arena, names, size)
        ends = sorted((bucket.begin, bucket.end) for bucket in found)
        assert ends[0][0] == 0
        assert ends[-1][1] == arena.gradients.numel()
        assert all(a[1] == b[0] for a, b in pairwise(ends))
        firsts = [min(names.index(name) for name in bucket.names) for bucket in found]
        assert firsts == sorted(firsts, reverse=True)  # what is complete last comes last
        for bucket in found:
            inside = [n for n, (b, _) in arena.spans().items() if bucket.begin <= b < bucket.end]
            assert list(bucket.names) == inside
            assert len(inside) == 1 or bucket.end - bucket.begin <= size


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


class Counting(GradientExchange):
    """Notes how many buckets became complete."""

    def _send_next(self):
        self._sent.append(None)


def test_one_compiled_graph_stays_whole_and_sends_everything(monkeypatch):
    monkeypatch.setattr(exchange, "num_ranks", lambda: 2)
    model = PlainLayers()
    arena = AdamW(model, OptimizationConfig(num_steps=1)).arena
    compiled = torch.compile(model.loss, fullgraph=True, dynamic=True, backend="aot_eager")
    for loss in (model.loss, compiled):
        with torch._dynamo.config.patch(error_on_recompile=True):
            for num_rows in (5, 6, 7):
                names = [name for name, _ in model.named_parameters()]
                counting = Counting(arena, names, bucket_megabytes=1e-5)
                with counting.while_backward():
                    loss(torch.ones(num_rows, 4)).backward()
                assert len(counting._sent) == len(counting._buckets) > 1
