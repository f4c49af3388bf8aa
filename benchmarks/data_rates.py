"""CPU time of each kind of data task per megabyte of text, for docs/planning-data.md.

    python benchmarks/data_rates.py [--folder FOLDER] [--files 25] [--rounds 3]

Runs the tasks of the three data stages one after the other in this process, without Ray, and
measures CPU time, which hardly depends on other load. The rest of a stage (planning, duplicates,
training the vocabulary) is the work of its driver.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pipelines.artifacts import ArtifactStore
from pipelines.stage import StageContext
from pipelines.stages.corpus.settings import CorpusSettings, PlainText
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.examples.stage import ExampleSettings, build_examples
from pipelines.stages.vocabulary.stage import VocabularySettings, build_vocabulary

DATA = Path(__file__).parents[2] / "shared" / "data"


class InThisProcess:
    """Replaces `map_tasks`: the same calls, one after the other, with their time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, function: partial[Any], items: Sequence[Any], **_: Any) -> list[Any]:
        started = time.process_time()
        results = [function(item) for item in items]
        self.seconds[function.func.__name__.strip("_")] = time.process_time() - started
        return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=DATA / "corpus" / "english_novels")
    parser.add_argument("--files", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    files = sorted(arguments.folder.glob("*_*.txt"))[: arguments.files]
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    found: dict[str, list[float]] = {}
    for _ in range(arguments.rounds):
        for name, seconds in run(files).items():
            found.setdefault(name, []).append(seconds)
    print(f"{megabytes:.1f} MB of text, one process, median of {arguments.rounds}\n")
    print(f"{'':32} {'CPU s':>7} {'MB/s':>7}")
    for name, seconds in found.items():
        median = statistics.median(seconds)
        print(f"{name:32} {median:7.2f} {megabytes / median:7.1f}")


def run(files: list[Path]) -> dict[str, float]:
    """CPU seconds of each kind of task, and of the rest of each stage."""
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        context = StageContext(store=ArtifactStore(folder))
        source = PlainText(paths=tuple(map(str, files)))
        stages: list[tuple[str, str, Callable[[list[Any]], Any]]] = [
            (
                "corpus",
                "pipelines.stages.corpus.stage",
                lambda made: build_corpus(CorpusSettings(sources=(source,)), context),
            ),
            (
                "vocabulary",
                "pipelines.stages.vocabulary.counting",
                lambda made: build_vocabulary(VocabularySettings(size=30_522), made[0], context),
            ),
            (
                "examples",
                "pipelines.stages.examples.stage",
                lambda made: build_examples(ExampleSettings(), made[0], made[1], context),
            ),
        ]
        made: list[Any] = []
        for stage, module, build in stages:
            tasks = InThisProcess()
            started = time.process_time()
            with patch(f"{module}.map_tasks", tasks):
                made.append(build(made))
            total = time.process_time() - started
            for name, spent in tasks.seconds.items():
                seconds[f"{stage}: {name}"] = spent
            seconds[f"{stage}: the rest"] = total - sum(tasks.seconds.values())
    return seconds


if __name__ == "__main__":
    main()
