"""How many of our files a command runs through: traces of three commands.

    python benchmarks/files_entered.py demo                 # `run demo`, to its first Ray task
    python benchmarks/files_entered.py pretrain             # a pretraining step on a CPU
    python benchmarks/files_entered.py predict --home HOME  # `predict`, in a home with models

A profile hook records every file of `bert_core`, `pipelines` and `flows` in which a function runs,
in this process and all its threads. Code that runs during an import does not count. Ray's tasks and
worker processes are not traced.
"""

import argparse
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

PACKAGES = tuple(f"{ROOT / name}/" for name in ("bert_core", "pipelines", "flows"))
TEXT = "Returns the eigenvalues of a matrix."


class Reached(BaseException):
    """The end of a trace."""


class Trace:
    """Collects the files in which functions run, in order."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}  # and the first function in each

    def __enter__(self) -> "Trace":
        threading.setprofile(self._record)
        sys.setprofile(self._record)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _record(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        is_ours = event == "call" and code.co_filename.startswith(PACKAGES)
        if not is_ours or code.co_name.startswith("<") or code.co_filename in self.files:
            return
        caller = frame.f_back
        while caller is not None:
            is_module = caller.f_code.co_name == "<module>"
            if is_module and caller.f_code.co_filename.startswith(PACKAGES):
                return  # being imported
            caller = caller.f_back
        self.files[code.co_filename] = code.co_name


def demo(home: str | None) -> Trace:
    """Up to the start of Ray, just before the first task of the corpus."""
    import ray

    from flows.cli.app import run

    def reached(*arguments: Any, **options: Any) -> None:
        sys.setprofile(None)
        raise Reached

    ray.init = reached
    with tempfile.TemporaryDirectory() as folder, Trace() as trace:
        try:
            run(["run", "demo", "--home", folder])
        except Reached:
            return trace
    raise SystemExit("the run ended before its first Ray task")


def pretrain(home: str | None) -> Trace:
    """One step of the training loop on a list of random batches."""
    from benchmarks.step import our_step

    step, _ = our_step("tiny", "float32")
    step()  # compiles and caches
    with Trace() as trace:
        step()
    return trace


def predict(home: str | None) -> Trace:
    """Label a text with the newest champion of a home."""
    from flows.cli.app import run

    with Trace() as trace:
        code = run(["predict", TEXT, *(["--home", home] if home else [])])
    if code:
        raise SystemExit("the prediction failed")
    return trace


TRACES = {"demo": demo, "pretrain": pretrain, "predict": predict}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", choices=TRACES)
    parser.add_argument("--home", help="folder with the models to predict with")
    given = parser.parse_args()
    trace = TRACES[given.trace](given.home)
    for number, (file, function) in enumerate(trace.files.items(), start=1):
        print(f"{number:3d}  {Path(file).relative_to(ROOT)}  {function}")
    print(f"{given.trace}: {len(trace.files)} files entered")


if __name__ == "__main__":
    main()
