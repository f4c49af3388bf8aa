"""Benchmarks are measured rarely: that they start, and end, is seen here."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.alternating import OutOfTimeError, Side, alternate

ROOT = Path(__file__).parents[2]
OURS = ("bert_core", "benchmarks", "pipelines", "flows", "tests")
IMPORTS = f"""
import importlib, json, sys
from pathlib import Path

absent = {{}}
sys.path.append("benchmarks")
names = [path.stem for path in sorted(Path("benchmarks").glob("*.py"))]
for name in names:
    try:
        importlib.import_module("benchmarks." + name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] in {OURS} or error.name in names:
            raise
        absent[name] = error.name
print(json.dumps([names, absent]))
"""


def test_every_benchmark_can_be_imported():
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names, absent = json.loads(done.stdout.splitlines()[-1])
    assert "scaling" in names
    assert "scaling" not in absent


def side(path, text):
    path.write_text(text, encoding="utf-8")
    return Side([str(path)], num_warmups=0)


def test_a_side_that_hangs_is_ended_and_named(tmp_path):
    pid = tmp_path / "pid"
    note = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid()))\n"
    sides = {
        "good": side(tmp_path / "good.py", "print('{}', flush=True)\nimport time; time.sleep(600)"),
        "stuck": side(tmp_path / "stuck.py", f"{note}time.sleep(600)"),
    }
    begun = time.monotonic()
    with pytest.raises(OutOfTimeError, match="'stuck' had not answered"):
        alternate(sides, 1, time_limit=12)
    assert time.monotonic() - begun < 300
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text(encoding="utf-8")), 0)
