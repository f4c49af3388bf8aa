"""Benchmarks are measured rarely: that they still import is seen here."""

import json
import os
import subprocess
import sys
from pathlib import Path

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
