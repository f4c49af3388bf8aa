"""The demo's pretraining inside its flow, beside the best plain loop on the same machine.

    python benchmarks/flow_speed.py                  # three rounds
    python benchmarks/flow_speed.py --rounds 1 --steps 300

The sides take turns, each as a whole training of the demo's encoder on the demo's examples:
a loop of `bert_core` alone as one process with a thread a core, the same as one process a core
with one thread each (gloo over the loopback), and the flow `pretrain` as a person starts it, with
a local Prefect API, Ray and MLflow. Tokens a second: of the plain loops what lies between the
steps, of the flow what the stage reports. The first steps of each are left out of the plain loops
and are part of the flow's figure.
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

SIDES = ("1 process, a thread a core", "a process a core, 1 thread", "the flow")
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
    bertsmith(home, "examples", [])  # nobody's training counts what all of them need
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
        "| side | tokens/s, median | least | most | of the best plain loop |",
        "|---|---|---|---|---|",
        *(
            f"| {side} | {medians[side]:,.0f} | {min(each):,.0f} | {max(each):,.0f} "
            f"| {medians[side] / best:.0%} |"
            for side, each in rates.items()
        ),
        "",
        f"BERT-{size}, {num_steps} steps of 32 of the demo's examples, {num_rounds} rounds "
        f"in turns, {num_cores} cores.",
    ]
    report("flow_speed", "The flow's training beside the plain loop", lines)


def bertsmith(home: Path, command: str, overrides: list[str]) -> None:
    """Run a command of Bertsmith on the demo as a person would."""
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
    """Tokens a second of the flow's training; each seed is a training run of its own."""
    known = set(home.glob("store/encoder/*/manifest.json"))
    changes = {"size": size, "num_steps": num_steps, "seed": seed}
    bertsmith(home, "pretrain", [f"pretraining.{key}={value}" for key, value in changes.items()])
    (manifest,) = set(home.glob("store/encoder/*/manifest.json")) - known
    return float(json.loads(manifest.read_text())["statistics"]["tokens_per_second"])


def plain_loop(store: str, size: str, num_steps: int, num_ranks: int, num_threads: int) -> float:
    """Tokens a second of a training run by `bert_core` alone."""
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
    told = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"a plain loop ended with {[rank.returncode for rank in ranks]}")
    return float(told[0])


def plain_rank(
    size: str, num_steps: int, store: str, rank: int, num_ranks: int, num_threads: int, port: int
) -> None:
    """One process of a plain loop; rank 0 prints the tokens a second of all of them."""
    import pipelines.cluster.connection  # noqa: F401  (the environment that Ray's workers compute in)

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
