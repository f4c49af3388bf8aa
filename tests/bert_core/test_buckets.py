"""How the arena is cut into buckets."""

from itertools import pairwise

from bert_core.training.exchange import buckets
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig
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
