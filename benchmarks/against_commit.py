"""Compare this checkout with another: is anything slower, or does it use more memory?

    git worktree add ../before 3867d57
    python benchmarks/against_commit.py --baseline ../before
    python benchmarks/against_commit.py --baseline ../before step/tiny embed/mini --turns 1

Each checkout runs the side "ours" of its own benchmark file in its own process, and the two take
turns: a pretraining step, a fine-tuning step and sentence embeddings. The ratio is that of the
medians; above 1.03 this checkout is slower. Peak memory is per process.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import ROOT, Side, alternate, matrix_side, one_of, report

BENCHMARKS = ("step", "finetune_step", "embed")
COMPARED = (
    "step/tiny", "step/mini", "step/small", "step/base", "finetune_step/mini",
    "finetune_step/base", "embed/mini",
)  # fmt: skip
WARMUPS = {"step": 8, "finetune_step": 16, "embed": 1}  # every batch once
SENTENCES = 2_000
TOLERANCE = 1.03


def sides(what: str, trees: dict[str, Path], folder: Path, steps: int) -> dict[str, Side]:
    """The same work in both checkouts."""
    benchmark, size = what.split("/")
    result = {}
    for name, tree in trees.items():
        command = [str(tree / "benchmarks" / f"{benchmark}.py")]
        if benchmark == "embed":
            own = folder / name
            shutil.copytree(folder / "model", own)
            command += ["--folder", str(own), "--sentences", str(SENTENCES), "--side", "ours"]
            result[name] = Side(command, 1, WARMUPS[benchmark], tree)
        else:
            result[name] = Side([*command, size, "--side", "ours"], steps, WARMUPS[benchmark], tree)
    return result


def compared(what: str, trees: dict[str, Path], steps: int, turns: int) -> tuple[str, float]:
    """The table row, and the best rate of a bf16 matrix product measured between the turns."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if what.startswith("embed/"):
            from benchmarks.embed import export

            export(folder / "model", what.partition("/")[2])
        timings = alternate(
            {"bf16": matrix_side("bf16"), **sides(what, trees, folder, steps)}, turns
        )
        remark = ""
        if what.startswith("embed/"):
            before, after = (np.load(folder / name / "ours-float32.npy") for name in trees)
            remark = f"; vectors differ by {np.abs(after - before).max():.0e}"
    before, after = (timings[name] for name in trees)
    ratio = after.median_seconds / before.median_seconds
    verdict = "slower" if ratio > TOLERANCE else "not slower"
    memory = after.peak_bytes / before.peak_bytes
    line = (
        f"| {what} | {before.median_seconds * 1e3:.1f} ms | {after.median_seconds * 1e3:.1f} ms "
        f"| {ratio:.3f} | {after.min_seconds / before.min_seconds:.3f} "
        f"| {before.peak_bytes / 2**20:.0f} / {after.peak_bytes / 2**20:.0f} MiB ({memory:.2f}) "
        f"| {verdict}{remark} |"
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
        f"{arguments.turns} alternating turns of {arguments.steps} steps (embedding "
        f"{SENTENCES} sentences is one step). Slower means above {TOLERANCE}."
    )
    report("against_commit", "Against a commit", [*lines, "", note], {"bf16": max(rates)})


if __name__ == "__main__":
    main()
