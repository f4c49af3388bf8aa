"""The demo's pretraining in its flow, compared with the best plain loop on the same machine.

    python benchmarks/flow_speed.py                  # three rounds
    python benchmarks/flow_speed.py --rounds 1 --steps 300

The sides take turns, each with a whole training run of the demo's encoder on the demo's examples:
a loop of `bert_core` alone in one process with a thread per core, the same with one process per
core of one thread each (gloo on the loopback), and the flow `pretrain` from the command line, with
a local Prefect API, Ray and MLflow. Tokens per second of the plain loops are measured between
steps, without the first ones; the flow's are what the stage reports, the first steps included.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import ROOT, report

SIDES = ("1 process, a thread per core", "a process per core, 1 thread", "the flow")
SETTLING_STEPS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=600, help="optimizer steps of each training run"
    )
    parser.add_argument("--size", default="tiny", help="of the encoder")
    parser.add_argument("--rank", nargs=5, metavar="N", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        store, *numbers = arguments.rank
        plain_rank(arguments.size, arguments.steps, store, *map(int, numbers))
        return
    with tempfile.TemporaryDirectory(prefix="bertsmith-flow-speed-") as folder:
        compare(Path(folder), arguments.size, arguments.steps, arguments.rounds)


def compare(home: Path, size: str, num_steps: int, num_rounds: int) -> None:
    """Let the sides take turns and report their medians."""
    bertsmith(home, "examples", [])  # built first, as all sides need them
    store, num_cores = str(home / "store"), len(os.sched_getaffinity(0))
    sides: dict[str, Callable[[int], float]] = {
        SIDES[0]: lambda turn: plain_loop(store, size, num_steps, 1, num_cores),
        SIDES[1]: lambda turn: plain_loop(store, size, num_steps, num_cores, 1),
        SIDES[2]: lambda turn: flow(home, size, num_steps, seed=turn),
    }
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(num_rounds):
        for side, train in sides.items():
            rates[side].append(train(turn))
            print(f"round {turn + 1}: {side}: {rates[side][-1]:,.0f} tokens/s", file=sys.stderr)
    medians = {side: statistics.median(each) for side, each in rates.items()}
    best = max(medians[side] for side in SIDES[:2])
    lines = [
        "| side | tokens/s, median | min | max | of the best plain loop |",
        "|---|---|---|---|---|",
        *(
            f"| {side} | {medians[side]:,.0f} | {min(each):,.0f} | {max(each):,.0f} "
            f"| {medians[side] / best:.0%} |"
            for side, each in rates.items()
        ),
        "",
        f"BERT-{size}, {num_steps} steps of 32 of the demo's examples, {num_rounds} "
        f"alternating rounds, {num_cores} cores.",
    ]
    report("flow_speed", "The flow compared with the plain loop", lines)


def bertsmith(home: Path, command: str, overrides: list[str]) -> None:
    """Run a `bertsmith` command on the demo."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PREFECT_API_URL", "PREFECT_HOME", "MLFLOW_TRACKING_URI", "RAY_ADDRESS")
    }
    changes = [part for override in overrides for part in ("--set", override)]
    subprocess.run(
        [sys.executable, "-c", "from flows.cli import main; main()", command, "demo", *changes],
        check=True, cwd=ROOT, stdout=subprocess.DEVNULL,
        env={**environment, "BERTSMITH_HOME": str(home), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def flow(home: Path, size: str, num_steps: int, *, seed: int) -> float:
    """Tokens per second of the flow; each seed is a separate training run."""
    known = set(home.glob("store/encoder/*/manifest.json"))
    changes = {"size": size, "num_steps": num_steps, "seed": seed}
    bertsmith(home, "pretrain", [f"pretraining.{key}={value}" for key, value in changes.items()])
    (manifest,) = set(home.glob("store/encoder/*/manifest.json")) - known
    return float(json.loads(manifest.read_text())["statistics"]["tokens_per_second"])


def plain_loop(store: str, size: str, num_steps: int, num_ranks: int, num_threads: int) -> float:
    """Tokens per second of a training run with `bert_core` alone."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--size", size, "--steps", str(num_steps), "--rank", store,
             str(rank), str(num_ranks), str(num_threads), str(port)],
            stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )
        for rank in range(num_ranks)
    ]  # fmt: skip
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"a plain loop failed with {[rank.returncode for rank in ranks]}")
    return float(outputs[0])


def plain_rank(
    size: str, num_steps: int, store: str, rank: int, num_ranks: int, num_threads: int, port: int
) -> None:
    """One process of a plain loop; rank 0 prints the tokens per second of all ranks."""
    import pipelines.cluster.connection  # noqa: F401  (sets the environment of Ray's workers)

    import torch  # isort: skip
    import torch.distributed as dist

    from bert_core.backends.memory import return_freed_memory
    from bert_core.config import encoder_config
    from bert_core.model.catalogue import PretrainingModel
    from bert_core.training.loop import train
    from bert_core.training.optimization import AdamW, OptimizationConfig
    from pipelines.artifacts import ArtifactStore
    from pipelines.stages.examples.batches import ExampleReader, micro_batches, prefetched

    torch.set_num_threads(num_threads)
    if num_ranks > 1:
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=num_ranks)
    (manifest,) = Path(store).glob("examples/*/manifest.json")
    examples = ArtifactStore(store).find("examples", manifest.parent.name)
    assert examples is not None
    reader = ExampleReader(examples, "train")
    return_freed_memory()
    torch.manual_seed(0)
    config = encoder_config(
        size, reader.vocab_size, max_position_embeddings=reader.max_tokens, hidden_dropout=0.0,
        attention_dropout=0.0,
    )  # fmt: skip
    model = PretrainingModel(config, next_sentence=reader.has_pairs)
    schedule = OptimizationConfig(
        num_steps=num_steps, warmup_steps=num_steps // 10, learning_rate=2e-3
    )
    optimizer = AdamW(model, schedule)
    share = 32 // max(2, num_ranks)  # the demo's micro-batches; more ranks get smaller ones

    def batches_of(step: int):  # type: ignore[no-untyped-def]
        return micro_batches(
            reader, seed=0, step=step, global_batch_size=32, micro_batch_size=share,
            rank=rank, world_size=num_ranks,
        )  # fmt: skip

    num_tokens = torch.zeros((), dtype=torch.float64)
    started = time.perf_counter()
    with prefetched(batches_of, num_steps) as batches:
        for step in train(model, optimizer, batches, seed=0, num_steps=num_steps):
            if step.step + 1 == SETTLING_STEPS:
                started = time.perf_counter()
            elif step.step >= SETTLING_STEPS:
                num_tokens += step.num_tokens
    if rank == 0:
        print(float(num_tokens) / (time.perf_counter() - started))


if __name__ == "__main__":
    main()
