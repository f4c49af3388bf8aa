"""How many files of ours a reader enters who follows a command: three walks, counted.

    python benchmarks/files_entered.py demo                 # `run demo`, to its first Ray task
    python benchmarks/files_entered.py pretrain             # a pretraining step on a CPU
    python benchmarks/files_entered.py predict --home HOME  # `predict`, in a home with models

A profile hook notes every file of `bert_core`, `pipelines` and `flows` in which a function runs, in
this process and all its threads. What runs while a module is imported does not count: importing is
no reason to read. What Ray's tasks and worker processes do afterwards is not seen.
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
    """The end of a walk."""


class Walk:
    """Collects the files that are entered, in their order."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}  # and the first function of each

    def __enter__(self) -> "Walk":
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
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


def demo(home: str | None) -> Walk:
    """To the moment in which Ray would start: the first task of the corpus is next."""
    import ray

    from flows.cli.app import run

    def reached(*arguments: Any, **options: Any) -> None:
        sys.setprofile(None)
        raise Reached

    ray.init = reached
    with tempfile.TemporaryDirectory() as folder, Walk() as walk:
        try:
            run(["run", "demo", "--home", folder])
        except Reached:
            return walk
    raise SystemExit("the run ended before its first Ray task")


def pretrain(home: str | None) -> Walk:
    """One step of the training loop on random tokens, whose batches come from a list."""
    from benchmarks.step import our_step

    step, _ = our_step("tiny", "float32")
    step()  # what is compiled and cached
    with Walk() as walk:
        step()
    return walk


def predict(home: str | None) -> Walk:
    """A text labelled by the newest champion of a home."""
    from flows.cli.app import run

    with Walk() as walk:
        code = run(["predict", TEXT, *(["--home", home] if home else [])])
    if code:
        raise SystemExit("nothing was predicted")
    return walk


WALKS = {"demo": demo, "pretrain": pretrain, "predict": predict}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("walk", choices=WALKS)
    parser.add_argument("--home", help="of the models to predict with")
    given = parser.parse_args()
    walk = WALKS[given.walk](given.home)
    for number, (file, function) in enumerate(walk.files.items(), start=1):
        print(f"{number:3d}  {Path(file).relative_to(ROOT)}  {function}")
    print(f"{given.walk}: {len(walk.files)} files entered")


if __name__ == "__main__":
    main()
