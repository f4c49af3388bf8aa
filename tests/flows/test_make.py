"""What the Makefile asks of the machine."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("target", ["test-gpu", "bench-gpu"])
def test_a_machines_own_python_is_looked_at_once(tmp_path, target):
    calls, python = tmp_path / "calls", tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n', encoding="utf-8")
    python.chmod(0o755)
    command = ["make", "--dry-run", target, f"PYTHON={python}"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"{python} benchmarks/gpu" in told
    assert len(calls.read_text(encoding="utf-8").splitlines()) == 1
