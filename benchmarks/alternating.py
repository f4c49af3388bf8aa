"""Two or more sides of a comparison, taking turns on one machine.

Each side lives in a process of its own, is built once and then makes a step, or a few in a row,
while the others wait: whatever else the machine does meets all of them alike, peak memory can be
told apart, and no side inherits pages that another one left to the allocator.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Timing:
    """What one side needed for a step."""

    median_seconds: float
    least_seconds: float
    peak_bytes: int
    facts: dict[str, float]


def serve(step: Callable[[], None], facts: dict[str, float]) -> None:
    """Make a step for every line on standard input; answer each with its seconds."""
    answer = sys.stdout
    sys.stdout = sys.stderr  # whatever a library prints is no answer
    print(json.dumps(facts), file=answer, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        step()
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps([seconds, peak]), file=answer, flush=True)


def alternate(
    commands: dict[str, list[str]],
    num_rounds: int,
    *,
    num_warmups: int = 2,
    steps_a_turn: int = 1,
) -> dict[str, Timing]:
    """Let the sides, each started by its command, take turns: `num_rounds` measured ones each.

    Before them every side has `num_warmups` turns that are not measured.
    """
    processes = {
        name: subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )
        for name, command in commands.items()
    }  # fmt: skip
    try:
        facts = {name: json.loads(_line(process)) for name, process in processes.items()}
        seconds: dict[str, list[float]] = {name: [] for name in processes}
        peaks = dict.fromkeys(processes, 0)
        for turn in range(num_warmups + num_rounds):
            for name, process in processes.items():
                for _ in range(steps_a_turn):
                    elapsed, peaks[name] = _make_step(process)
                    if turn >= num_warmups:
                        seconds[name].append(elapsed)
    finally:
        for process in processes.values():
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
    return {
        name: Timing(statistics.median(seconds[name]), min(seconds[name]), peaks[name], facts[name])
        for name in processes
    }


def _make_step(process: subprocess.Popen) -> tuple[float, int]:
    assert process.stdin is not None
    process.stdin.write("step\n")
    process.stdin.flush()
    elapsed, peak = json.loads(_line(process))
    return elapsed, peak


def _line(process: subprocess.Popen) -> str:
    assert process.stdout is not None
    line: str = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a side ended early with exit code {process.wait()}: {process.args}")
    return line


def one_of(names: Collection[str]) -> Callable[[str], str]:
    """Reads one of `names` from the command line; argparse's own choices refuse an empty list."""

    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(names)}, got {text!r}")
        return text

    return read


def matrix_rate(dtype: torch.dtype) -> float:
    """Floating point operations a second of a 2,048-wide matrix product: the best of ten."""
    left = torch.randn(2048, 2048).to(dtype)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        left @ left
        times.append(time.perf_counter() - start)
    return 2 * 2048**3 / min(times)


def machine() -> str:
    """The hardware and versions that a result belongs to."""
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    bf16 = matrix_rate(torch.bfloat16) / 1e9
    float32 = matrix_rate(torch.float32) / 1e9
    return (
        f"{cpu}, {torch.get_num_threads()} threads; matrix products at {bf16:.0f} GFLOP/s in bf16 "
        f"and {float32:.0f} in float32; torch {torch.__version__}, Python "
        f"{platform.python_version()}"
    )


def report(name: str, title: str, lines: list[str]) -> None:
    """Print a result and keep it under its date."""
    today = datetime.now(UTC).date().isoformat()
    text = "\n".join([f"# {title}", "", f"{today}. {machine()}.", "", *lines, ""])
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}_{today}.md").write_text(text, encoding="utf-8")
    print(text)
