"""Pretraining steps on a GPU compared with the compiled usual stack on the same card.

    python benchmarks/gpu.py                 # under ten minutes on a bare machine with 16 cores
    make bench-gpu PYTHON=python3

BERT-base and -large, lengths 128 and 512, dropout 0 and 0.1, bf16. For each size and length, both
sides with both dropouts start and compile at the same time and then take turns, as does a plain
matrix product. `benchmarks/gpu_side.py` is one side. Needs torch, numpy, transformers and this
checkout. Without CUDA everything runs too, with a tiny model, eager and for one turn: this shows
that the program works and says nothing about speed.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import OutOfTimeError, Side, Timing, alternate, report

TARGET_RATE = 790e12  # operations/s that shares refer to: bf16 products, measured on an H200
TOKENS = {"base": 32_768, "large": 16_384, "tiny": 512}  # per batch, padding included
SIDES = ("ours", "usual")


@dataclass(frozen=True)
class Case:
    """What is measured."""

    size: str
    length: int
    dropout: float

    def __str__(self) -> str:
        return f"{self.size}, {self.length}, dropout {self.dropout}"


CASES = tuple(
    Case(size, length, dropout)
    for size in ("base", "large")
    for length in (128, 512)
    for dropout in (0.0, 0.1)
)
CASES_ON_A_CPU = (Case("tiny", 32, 0.0), Case("tiny", 32, 0.1))


@dataclass(frozen=True)
class Result:
    """One side's times and profile."""

    timing: Timing
    notes: dict[str, Any]

    @property
    def seconds(self) -> float:
        return self.timing.median_seconds / self.timing.facts["steps"]

    @property
    def tokens_per_second(self) -> float:
        return self.timing.facts["tokens"] / self.seconds


def measured(
    cases: Iterable[Case], num_turns: int, time_limit: float
) -> tuple[dict[tuple[Case, str], Result], float]:
    """Results of both sides of the cases, and the card's matrix rate between their turns."""
    with tempfile.TemporaryDirectory() as folder:
        sides = {"products": Side([__file__, "--side", "products"], num_warmups=1)}
        notes: dict[tuple[Case, str], Path] = {}
        for case in cases:
            for side in SIDES:
                path = notes[case, side] = Path(folder) / f"{len(notes)}.json"
                command = [
                    __file__, "--side", side, "--notes", str(path), "--size", case.size,
                    "--length", str(case.length), "--dropout", str(case.dropout),
                ]  # fmt: skip
                sides[f"{case} {side}"] = Side(command, num_warmups=1)
        timings = alternate(sides, num_turns, time_limit=time_limit)
        results = {
            (case, side): Result(timings[f"{case} {side}"], json.loads(path.read_text("utf-8")))
            for (case, side), path in notes.items()
        }
    return results, timings["products"].best_rate


def table(results: dict[tuple[Case, str], Result], rate: float) -> list[str]:
    lines = [
        "| case | ours | usual stack | over it | ours, tokens/s | of 790 TFLOP/s "
        "| of the measured rate | wait for the loader per step | launches, ours / usual "
        "| peak memory, ours / usual |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in dict.fromkeys(case for case, _ in results):
        ours, usual = (results[case, side] for side in SIDES)
        needed = ours.timing.facts["operations"] / ours.seconds
        memory = " / ".join(f"{r.notes.get('peak', r.timing.peak_bytes) / 2**30:.1f}"
                            for r in (ours, usual))  # fmt: skip
        lines.append(
            f"| {case} | {ours.seconds * 1e3:.1f} ms | {usual.seconds * 1e3:.1f} ms "
            f"| {usual.seconds / ours.seconds:.2f}x | {ours.tokens_per_second:,.0f} "
            f"| {needed / TARGET_RATE:.1%} | {needed / rate:.0%} "
            f"| {ours.notes['wait'] * 1e3:.2f} ms ({ours.notes['wait'] / ours.seconds:.1%}) "
            f"| {ours.notes['launches']:.0f} / {usual.notes['launches']:.0f} "
            f"| {memory} GiB |"
        )
    for (case, side), result in results.items():
        warmup = result.timing.facts["warmup_seconds"]
        lines += ["", f"**{case}, {side}** (compiling and warm-up {warmup:.0f} s):", ""]
        lines += [f"- {share:.1%}, {times:.0f} times: `{name}`"
                  for name, times, share in result.notes["top"]]  # fmt: skip
    return lines


def device_line() -> str:
    if not torch.cuda.is_available():
        return (
            "No CUDA device: a CPU took single eager steps of a tiny model, which shows that the "
            "program runs and says nothing about speed."
        )
    free, total = torch.cuda.mem_get_info()
    return (
        f"{torch.cuda.get_device_name()}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free "
        f"at the start; CUDA {torch.version.cuda}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=5, help="measured turns of each side")
    parser.add_argument("--minutes", type=float, default=9, help="after which cases are skipped")
    parser.add_argument("--size", choices=TOKENS, help=argparse.SUPPRESS)
    parser.add_argument("--length", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--dropout", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=(*SIDES, "products"), help=argparse.SUPPRESS)
    parser.add_argument("--notes", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        from benchmarks.gpu_side import run_side, serve_products

        if arguments.side == "products":
            serve_products()
        else:
            run_side(arguments.side, arguments.size, arguments.length, arguments.dropout,
                     TOKENS[arguments.size], arguments.notes)  # fmt: skip
        return
    started = time.monotonic()
    has_gpu = torch.cuda.is_available()
    device = device_line()
    cases = CASES if has_gpu else CASES_ON_A_CPU
    results: dict[tuple[Case, str], Result] = {}
    rates, slowest, skipped = [], 0.0, []
    for size, length in dict.fromkeys((case.size, case.length) for case in cases):
        group = [case for case in cases if (case.size, case.length) == (size, length)]
        group_started = time.monotonic()
        if group_started - started + slowest > arguments.minutes * 60:
            skipped += group
            continue
        left = arguments.minutes * 60 - (group_started - started)
        try:
            found, rate = measured(group, arguments.turns if has_gpu else 1, left)
        except OutOfTimeError as error:
            print(error, file=sys.stderr)
            skipped += group
            continue
        results |= found
        rates.append(rate)
        slowest = max(slowest, time.monotonic() - group_started)
    if not rates:
        sys.exit(f"nothing was measured in {arguments.minutes:g} minutes; see above what was slow")
    lines = [device, "", *table(results, max(rates))]
    lines += [f"\nSkipped for lack of time: {case}." for case in skipped]
    lines += ["", f"Took {time.monotonic() - started:.0f} s."]
    report("gpu", "Pretraining steps on a GPU", lines, {"bf16": max(rates)})


if __name__ == "__main__":
    main()
