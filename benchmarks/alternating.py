"""Compare two or more sides that take turns on one machine.

Each side runs in its own process, is built once and then takes one or a few steps while the others
wait. So other load on the machine affects all sides alike, peak memory is measured per side, and no
side reuses pages that another one left to the allocator.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PRECISIONS = {"bf16": torch.bfloat16, "float32": torch.float32}
WIDTH = 2048  # of the matrices whose product measures the machine's rate


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a command that serves steps, and how many it takes per turn."""

    command: list[str]
    steps_per_turn: int = 1
    num_warmups: int = 2  # steps that are not measured
    tree: Path = ROOT  # the checkout whose code it runs


@dataclass(frozen=True)
class Timing:
    """Time and memory of one side's steps."""

    median_seconds: float
    min_seconds: float
    peak_bytes: int
    facts: dict[str, float]

    @property
    def best_rate(self) -> float:
        """Operations per second in the fastest step, for a side that reports its operations."""
        return self.facts["operations"] / self.min_seconds


def serve(step: Callable[[], None], facts: dict[str, float]) -> None:
    """Take a step for every line on standard input; write its seconds and the peak memory."""
    results = sys.stdout
    sys.stdout = sys.stderr  # what libraries print must not mix with the results
    print(json.dumps(facts), file=results, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        step()
        seconds = time.perf_counter() - start
        peak = _peak_bytes()
        print(json.dumps([seconds, peak]), file=results, flush=True)


def _peak_bytes() -> int:
    """The peak memory of this process.

    `VmHWM` is reset when the program starts; `ru_maxrss` includes what the parent held.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class OutOfTimeError(RuntimeError):
    """A side did not answer within the time limit."""


def alternate(
    sides: Mapping[str, Side], num_turns: int, *, time_limit: float = 7200
) -> dict[str, Timing]:
    """Let the sides take turns: `num_turns` measured turns each, after all have warmed up.

    Raises OutOfTimeError, after ending all sides, if this takes more than `time_limit` seconds, and
    RuntimeError if a side ends early.
    """
    deadline = time.monotonic() + time_limit
    processes = {
        name: subprocess.Popen(
            [sys.executable, *side.command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=side.tree,
            env=os.environ | {"PYTHONPATH": str(side.tree)},
        )
        for name, side in sides.items()
    }  # fmt: skip
    try:
        facts = {name: json.loads(_line(name, process, deadline))
                 for name, process in processes.items()}  # fmt: skip
        for name, process in processes.items():
            for _ in range(sides[name].num_warmups):
                _take_step(name, process, deadline)
        seconds: dict[str, list[float]] = {name: [] for name in processes}
        peaks = dict.fromkeys(processes, 0)
        for turn in range(num_turns):
            # In alternating order: a side must not always inherit heat and caches of the same one.
            for name in list(processes)[:: -1 if turn % 2 else 1]:
                for _ in range(sides[name].steps_per_turn):
                    elapsed, peaks[name] = _take_step(name, processes[name], deadline)
                    seconds[name].append(elapsed)
    except BaseException:
        for process in processes.values():
            process.kill()  # in a long step it would not notice that its input has ended
        raise
    finally:
        for process in processes.values():
            process.communicate()
    return {
        name: Timing(statistics.median(seconds[name]), min(seconds[name]), peaks[name], facts[name])
        for name in processes
    }


def _take_step(name: str, process: subprocess.Popen, deadline: float) -> tuple[float, int]:
    assert process.stdin is not None
    process.stdin.write("step\n")
    process.stdin.flush()
    elapsed, peak = json.loads(_line(name, process, deadline))
    return elapsed, peak


def _line(name: str, process: subprocess.Popen, deadline: float) -> str:
    assert process.stdout is not None
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        process.kill()

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), end)
    timer.start()
    line: str = process.stdout.readline()
    timer.cancel()
    if is_late.is_set():
        raise OutOfTimeError(f"the side {name!r} had not answered within the time limit")
    if not line:
        code = process.wait()
        raise RuntimeError(f"the side {name!r} ended early with exit code {code}: {process.args}")
    return line


def matrix_side(precision: str) -> Side:
    """A side that measures the machine: 2,048-wide matrix products between the other turns.

    Shares refer to the best of them. Measured separately, on a machine that was busy first and idle
    later, a share was once 136%.
    """
    return Side([__file__, "--matrix-products", precision], steps_per_turn=20, num_warmups=20)


def one_of(names: Collection[str]) -> Callable[[str], str]:
    """An argparse type for one of `names`; with `choices`, argparse refuses an empty list."""

    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(names)}, got {text!r}")
        return text

    return read


def matrix_rate(dtype: torch.dtype) -> float:
    """Floating point operations per second of a 2,048-wide matrix product, the best of ten."""
    left = torch.randn(WIDTH, WIDTH).to(dtype)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        left @ left
        times.append(time.perf_counter() - start)
    return 2 * WIDTH**3 / min(times)


def machine(rates: Mapping[str, float]) -> str:
    """The hardware and versions of a result; `rates` by precision."""
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    products = " and ".join(f"{rate / 1e9:.0f} GFLOP/s in {name}" for name, rate in rates.items())
    measured = f"matrix products at {products}; " if rates else ""
    return (
        f"{cpu}, {torch.get_num_threads()} threads; {measured}"
        f"torch {torch.__version__}, Python {platform.python_version()}"
    )


def report(
    name: str, title: str, lines: list[str], rates: Mapping[str, float] | None = None
) -> None:
    """Print a result and write it to a dated file.

    `rates` are the operations per second of matrix products by precision, if the run measured them;
    otherwise they are measured now.
    """
    today = datetime.now(UTC).date().isoformat()
    if rates is None:
        rates = {name: matrix_rate(dtype) for name, dtype in PRECISIONS.items()}
    text = "\n".join([f"# {title}", "", f"{today}. {machine(rates)}.", "", *lines, ""])
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}_{today}.md").write_text(text, encoding="utf-8")
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=matrix_side.__doc__)
    parser.add_argument("--matrix-products", choices=PRECISIONS, required=True)
    dtype = PRECISIONS[parser.parse_args().matrix_products]
    matrix = torch.randn(WIDTH, WIDTH).to(dtype)
    product = torch.empty_like(matrix)
    serve(lambda: torch.mm(matrix, matrix, out=product) is None, {"operations": 2 * WIDTH**3})


if __name__ == "__main__":
    main()
