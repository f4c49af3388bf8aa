"""Everything that has to be tested on a GPU, in a few minutes: `make test-gpu`.

    python benchmarks/gpu_tests.py

Runs the tests marked `gpu`, then compares every head's logits, losses and gradients with
`transformers` on the card, in float32. Needs pytest, torch, numpy, safetensors, tokenizers,
hypothesis and transformers; warnings of versions other than the pinned ones fail no test. Without
CUDA the marked tests are skipped and a CPU computes the parity of the tiny models; the result says
so. Exits with an error if a test fails or a difference is too large.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import ROOT, report
from benchmarks.gpu import device_line
from benchmarks.parity import SIZES, parity_table
from bert_core.backends.operations import use_backend

LARGEST_DIFFERENCE = 2e-5  # of a logit, a loss or a gradient, in float32 on any device
TIME_LIMIT = 480  # seconds for pytest: the parity needs a minute


def marked_files() -> list[str]:
    """Test files with a test marked `gpu`; others need packages that a bare machine lacks."""
    files = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text(encoding="utf-8")
    ]
    if not files:
        raise RuntimeError("there must be tests marked gpu, found none under tests/")
    return files


def marked_tests() -> tuple[list[str], int]:
    """A table row for each marked test with its outcome, and pytest's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        finished = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-W", "default", "-p",
             "no:cacheprovider", f"--junitxml={results}", *marked_files()],
            cwd=ROOT, timeout=TIME_LIMIT,
        )  # fmt: skip
        if not results.is_file():
            return ["pytest ended before it ran a test."], finished.returncode or 1
        cases = list(ElementTree.parse(results).iter("testcase"))
    lines = ["| test | outcome | seconds |", "|---|---|---|"]
    for case in cases:
        outcome = "passed"
        for kind in ("failure", "error", "skipped"):
            found = case.find(kind)
            if found is not None:
                message = (found.get("message") or "").split("\n")[0][:120]
                outcome = f"{kind}: {message}".replace("|", "/")
        name = f"{case.get('classname', '').rpartition('.')[2]}: {case.get('name', '')}"
        lines.append(f"| {name.replace('|', '/')} | {outcome} | {float(case.get('time', 0)):.1f} |")
    return lines, finished.returncode


def where(device: str) -> str:
    if device == "cuda":
        return device_line()
    return (
        "No CUDA device: the marked tests are skipped, and a CPU computes the parity of the tiny "
        "models with the plain backend, which a GPU uses."
    )


def main() -> None:
    started = time.monotonic()
    tests, code = marked_tests()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with use_backend("plain"):  # a GPU has no other
        parity, worst = parity_table(device, SIZES if device == "cuda" else SIZES[:1])
    passes = worst <= LARGEST_DIFFERENCE
    verdict = "within" if passes else "ABOVE"
    report("gpu_tests", "Tests on a GPU", [
        where(device), "", *tests, "", f"Differences from transformers, float32, {device}; the "
        f"largest, {worst:.1e}, is {verdict} the limit of {LARGEST_DIFFERENCE:.0e}.", "", *parity,
        "", f"Took {time.monotonic() - started:.0f} s.",
    ])  # fmt: skip
    if code or not passes:
        sys.exit(1)


if __name__ == "__main__":
    main()
