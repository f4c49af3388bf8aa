"""Compare this checkout with another: is anything slower, or does it use more memory?

    git worktree add ../before 3867d57
    python benchmarks/against_commit.py --baseline ../before
    python benchmarks/against_commit.py --baseline ../before step/tiny --turns 1

Each checkout runs the side "ours" of its own benchmark file in its own process, and the two take
turns: a pretraining step and a fine-tuning step. The ratio is that of the medians; above 1.05 this
checkout is slower. Peak memory is per process.
"""

import argparse
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import ROOT, Side, alternate, matrix_side, one_of, report

BENCHMARKS = ("step", "finetune_step")
COMPARED = (
    "step/tiny", "step/mini", "step/small", "step/base", "finetune_step/mini",
    "finetune_step/base",
)  # fmt: skip
WARMUPS = {"step": 8, "finetune_step": 16}  # every batch once
TOLERANCE = 1.05


def sides(what: str, trees: dict[str, Path], steps: int) -> dict[str, Side]:
    """The same work in both checkouts."""
    benchmark, size = what.split("/")
    return {
        name: Side(
            [str(tree / "benchmarks" / f"{benchmark}.py"), size, "--side", "ours"],
            steps, WARMUPS[benchmark], tree,
        )
        for name, tree in trees.items()
    }  # fmt: skip


def compared(what: str, trees: dict[str, Path], steps: int, turns: int) -> tuple[str, float]:
    """The table row, and the best rate of a bf16 matrix product measured between the turns."""
    timings = alternate({"bf16": matrix_side("bf16"), **sides(what, trees, steps)}, turns)
    before, after = (timings[name] for name in trees)
    ratio = after.median_seconds / before.median_seconds
    verdict = "slower" if ratio > TOLERANCE else "not slower"
    memory = after.peak_bytes / before.peak_bytes
    line = (
        f"| {what} | {before.median_seconds * 1e3:.1f} ms | {after.median_seconds * 1e3:.1f} ms "
        f"| {ratio:.3f} | {after.min_seconds / before.min_seconds:.3f} "
        f"| {before.peak_bytes / 2**20:.0f} / {after.peak_bytes / 2**20:.0f} MiB ({memory:.2f}) "
        f"| {verdict} |"
    )
    return line, timings["bf16"].best_rate


def commit_of(tree: Path) -> str:
    """The commit of a checkout, and whether it has uncommitted changes."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(tree), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + (", changed" if git("diff", "HEAD") else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="*", default=list(COMPARED), type=one_of(COMPARED))
    parser.add_argument("--baseline", type=Path, required=True, help="the other checkout")
    parser.add_argument("--turns", type=int, default=6, help="measured turns of each checkout")
    parser.add_argument("--steps", type=int, default=8, help="steps per turn")
    arguments = parser.parse_args()
    trees = {"before": arguments.baseline.resolve(), "now": ROOT}
    if not all((trees["before"] / "benchmarks" / f"{name}.py").is_file() for name in BENCHMARKS):
        parser.error(f"--baseline must be a checkout with benchmarks, got {arguments.baseline}")
    lines = [
        "| | before | now | now / before, medians | fastest steps | peak memory | |",
        "|---|---|---|---|---|---|---|",
    ]
    rates = []
    for what in arguments.what:
        line, rate = compared(what, trees, arguments.steps, arguments.turns)
        print(line, flush=True)
        lines.append(line)
        rates.append(rate)
    note = (
        f"Before: {commit_of(trees['before'])}; now: {commit_of(ROOT)}. Medians of "
        f"{arguments.turns} alternating turns of {arguments.steps} steps. Slower means above "
        f"{TOLERANCE}."
    )
    report("against_commit", "Against a commit", [*lines, "", note], {"bf16": max(rates)})


if __name__ == "__main__":
    main()
