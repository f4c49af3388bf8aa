"""Where the ranks of a training run go, for clusters of many shapes; refusals are one sentence."""

import pytest

from pipelines.errors import UserError
from pipelines.settings import RuntimeSettings
from pipelines.train.placement import BatchSplit, Placement, schedule

LAPTOP = [{"CPU": 2.0}]
WORKSTATION = [{"CPU": 16.0}]
MIXED = [{"CPU": 16.0}, {"CPU": 64.0, "GPU": 8.0}]
THREE_NODES = [{"CPU": 32.0}, {"CPU": 32.0}, {"CPU": 16.0}]
TWO = BatchSplit(section="pretraining", global_batch_size=32, micro_batch_size=16)
EIGHT = BatchSplit(section="pretraining", global_batch_size=64, micro_batch_size=8)


def placed(
    ranks: RuntimeSettings,
    nodes: list[dict[str, float]],
    cut: BatchSplit = EIGHT,
    small: bool = False,
):
    return schedule(ranks, nodes, cut, one_thread_each=small)


@pytest.mark.parametrize(
    ("ranks", "nodes", "cut", "small", "expected"),
    [
        # auto, on CPUs: a core each where that is fastest, else as many as nodes
        (RuntimeSettings(training_workers="auto"), LAPTOP, TWO, True, (2, 1, False)),
        (RuntimeSettings(training_workers="auto"), WORKSTATION, EIGHT, True, (8, 2, False)),
        (RuntimeSettings(training_workers="auto"), THREE_NODES, EIGHT, False, (3, 16, False)),
        (RuntimeSettings(training_workers="auto"), THREE_NODES, EIGHT, True, (8, 4, False)),
        # auto, with GPUs: one each, and the CPUs of the node that has them
        (RuntimeSettings(training_workers="auto"), MIXED, EIGHT, False, (8, 8, True)),
        (RuntimeSettings(training_workers="auto"), MIXED, TWO, True, (2, 32, True)),
        (
            RuntimeSettings(training_workers="auto", device="cpu"),
            MIXED,
            EIGHT,
            False,
            (2, 32, False),
        ),
        # as asked
        (RuntimeSettings(training_workers=1), MIXED, EIGHT, False, (1, 64, True)),
        (RuntimeSettings(training_workers=4, device="cpu"), MIXED, EIGHT, False, (4, 16, False)),
        (
            RuntimeSettings(training_workers=2, cpus_per_worker=3),
            WORKSTATION,
            EIGHT,
            False,
            (2, 3, False),
        ),
        (RuntimeSettings(training_workers=(1, 4)), THREE_NODES, EIGHT, False, ((1, 4), 16, False)),
        (RuntimeSettings(training_workers=(1, 8)), LAPTOP, EIGHT, False, ((1, 8), 1, False)),
        # a range ends where a step has no more micro-batches, and its workers get the CPUs
        (RuntimeSettings(training_workers=(1, 16)), WORKSTATION, TWO, False, ((1, 2), 8, False)),
        (RuntimeSettings(training_workers=(2, 4)), WORKSTATION, TWO, False, ((2, 2), 8, False)),
    ],
)
def test_ranks_are_placed(ranks, nodes, cut, small, expected):
    num_workers, cpus, use_gpu = expected
    assert placed(ranks, nodes, cut, small) == Placement(
        num_workers=num_workers, cpus=cpus, use_gpu=use_gpu
    )


@pytest.mark.parametrize(
    ("ranks", "nodes", "cut", "sentence"),
    [
        (
            RuntimeSettings(training_workers=4),
            WORKSTATION,
            TWO,
            "4 training workers cannot share the 2 micro-batches of a step of pretraining "
            "(global_batch_size=32, micro_batch_size=16); set "
            "pretraining.micro_batch_size=8 or set runtime.training_workers to at most 2",
        ),
        (
            RuntimeSettings(training_workers=40),
            WORKSTATION,
            TWO,
            "at most 2 or raise pretraining.global_batch_size",
        ),
        (
            RuntimeSettings(training_workers=3),
            LAPTOP,
            EIGHT,
            "3 training workers with 1 CPU each do not fit the cluster, which has room for 2 on 1 "
            "node "
            "(2 CPUs with 0 GPUs); lower runtime.training_workers or add nodes",
        ),
        # fewer GPUs than asked for: never quietly on CPUs
        (
            RuntimeSettings(training_workers=4),
            [{"CPU": 16.0, "GPU": 2.0}],
            EIGHT,
            "with 1 CPU and a GPU each do not fit the cluster, which has room for 2 on 1 node "
            "(16 CPUs with 2 GPUs); lower runtime.training_workers or add nodes or set "
            "runtime.device=cpu to train on CPUs",
        ),
        (
            RuntimeSettings(training_workers="auto", device="gpu"),
            WORKSTATION,
            EIGHT,
            "runtime.device=cpu",
        ),
    ],
)
def test_what_cannot_be_placed_is_refused(ranks, nodes, cut, sentence):
    with pytest.raises(UserError) as raised:
        placed(ranks, nodes, cut)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("num_workers", range(1, 10))
@pytest.mark.parametrize("nodes", [LAPTOP, WORKSTATION, MIXED, THREE_NODES])
@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_what_is_placed_fits_and_no_rank_idles(num_workers, nodes, device):
    """Bin packing, checked by brute force: every worker finds a node that still has room."""
    try:
        found = placed(RuntimeSettings(training_workers=num_workers, device=device), nodes)
    except UserError:
        return
    free = [dict(node) for node in nodes]
    for _ in range(num_workers):
        node = next(
            node
            for node in free
            if node["CPU"] >= found.cpus and node.get("GPU", 0) >= found.use_gpu
        )
        node["CPU"] -= found.cpus
        node["GPU"] = node.get("GPU", 0) - found.use_gpu
    assert num_workers <= EIGHT.num_micro_batches
