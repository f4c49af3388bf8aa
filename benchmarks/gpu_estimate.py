"""Estimate without a GPU: what a step launches and moves on an H200, and its minimum time.

    python benchmarks/gpu_estimate.py --baseline ../before

The step runs on tensors that have shapes but no memory (`benchmarks/pretended_gpu.py`), in this
checkout and in another one. Each launch takes the longest of its operations at the card's measured
matrix rate, its bytes at the measured copy rate, and 2 microseconds; the host takes 5 microseconds
per launch. "Fused" merges the operations between two matrix products, attention kernels or
scattered writes into one launch, as a compiler may.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import ROOT, report
from benchmarks.gpu import CASES, TOKENS, Case

MATRIX_RATE = 790e12


def counted(tree: Path, case: Case) -> dict[str, Any]:
    """The figures of one step of `tree`."""
    command = [
        sys.executable, str(ROOT / "benchmarks" / "gpu_launches.py"), case.size,
        "--length", str(case.length), "--tokens", str(TOKENS[case.size]),
        "--dropout", str(case.dropout),
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(tree)}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tree)
    if output.returncode:
        raise RuntimeError(f"{' '.join(command)} failed in {tree}:\n{output.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(output.stdout.splitlines()[-1])
    return figures


def line(case: Case, name: str, variant: str, found: dict[str, Any]) -> str:
    figures = found[variant]
    seconds = max(figures["card"], figures["host"])
    share = found["needed"] / seconds / MATRIX_RATE
    bound = "host" if figures["host"] > figures["card"] else "card"
    return (
        f"| {case} | {name}, {variant} | {figures['launches']:,} | {figures['bytes'] / 1e9:.0f} GB "
        f"| {found['counted'] / 1e12:.1f} / {found['needed'] / 1e12:.1f} TFLOP "
        f"| {figures['card'] * 1e3:.1f} ms | {figures['host'] * 1e3:.1f} ms "
        f"| {found['tokens'] / seconds:,.0f} ({bound}) | {share:.0%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--baseline", type=Path, help="another checkout to compare with")
    arguments = parser.parse_args()
    trees = {"now": ROOT}
    if arguments.baseline:
        trees = {"before": arguments.baseline.resolve(), **trees}
    lines = [
        "| step | path | launches | moved | operations, done / needed | card | host "
        "| tokens/s at most | of 790 TFLOP/s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    most = []
    for case in CASES:
        for name, tree in trees.items():
            found = counted(tree, case)
            lines += [line(case, name, variant, found) for variant in ("unfused", "fused")]
            names = ", ".join(f"{count} {operation}" for operation, count in found["most"])
            most += [f"- {case}, {name}: {names}"]
    report("gpu_estimate", "A GPU's step, estimated", [
        "An estimate, not a measurement: there was no GPU. " + __doc__.split("\n\n")[2].replace(
            "\n", " "), "", *lines, "", "Most frequent operations, unfused:", "", *most,
    ], {})  # fmt: skip


if __name__ == "__main__":
    main()
