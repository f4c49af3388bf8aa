"""Memory of the data stages does not grow with the corpus.

    python benchmarks/data_memory.py [--folder FOLDER] [--copies 20]

Builds corpus, vocabulary and examples of a folder of text files, and again of several copies of
each file, with different noise in each copy so that none are duplicates. Prints the peak resident
memory (unique set size) of any worker and of the driver, and the time of each stage.
"""

import argparse
import random
import tempfile
import threading
import time
from pathlib import Path

import psutil

from pipelines.artifacts import ArtifactStore
from pipelines.cluster.connection import connect, disconnect
from pipelines.stage import StageContext
from pipelines.stages.corpus.settings import CorpusSettings, PlainText
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.examples.stage import ExampleSettings, build_examples
from pipelines.stages.vocabulary.stage import VocabularySettings, build_vocabulary

DATA = Path(__file__).parents[2] / "shared" / "data"


class PeakMemory:
    """Samples the unique set size of this process and of its Ray workers."""

    def __init__(self) -> None:
        self.driver = self.worker = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(0.25):
            self.driver = max(self.driver, me.memory_full_info().uss)
            for process in me.children(recursive=True):
                try:
                    if process.cmdline()[:1] and "ray::" in process.cmdline()[0]:
                        self.worker = max(self.worker, process.memory_full_info().uss)
                except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                    continue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=DATA / "corpus" / "english_novels")
    parser.add_argument("--copies", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    novels = sorted(arguments.folder.glob("*_*.txt"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for copies in (1, arguments.copies):
            texts = folder / f"texts-{copies}"
            size = write_copies(novels, texts, copies)
            connect()  # fresh workers for each size
            measure(texts, size, folder / f"store-{copies}", arguments.workers)
            disconnect()


def write_copies(novels: list[Path], folder: Path, copies: int) -> int:
    """Copies of all files, with a random number in place of every fiftieth word."""
    folder.mkdir()
    size = 0
    for copy in range(copies):
        rng = random.Random(copy)
        for path in novels:
            lines = []
            for line in path.read_text(encoding="utf-8").split("\n"):
                words = line.split(" ")
                words[::50] = [str(rng.randrange(10**6)) for _ in words[::50]]
                lines.append(" ".join(words))
            size += (folder / f"{path.stem}-{copy}.txt").write_text("\n".join(lines))
    return size


def measure(texts: Path, size: int, store: Path, num_workers: int) -> None:
    context = StageContext(store=ArtifactStore(store), num_workers=num_workers)
    seconds = []
    with PeakMemory() as peak:
        started = time.perf_counter()
        corpus = build_corpus(CorpusSettings(sources=(PlainText(paths=(str(texts),)),)), context)
        seconds.append(time.perf_counter() - started)
        started = time.perf_counter()
        vocabulary = build_vocabulary(VocabularySettings(size=30_522), corpus, context)
        seconds.append(time.perf_counter() - started)
        started = time.perf_counter()
        examples = build_examples(ExampleSettings(), corpus, vocabulary, context)
        seconds.append(time.perf_counter() - started)
    train = examples.statistics["train"]
    print(
        f"{size / 1e6:7.1f} MB: worker {peak.worker / 2**20:5.0f} MiB, driver "
        f"{peak.driver / 2**20:5.0f} MiB; corpus {seconds[0]:.1f} s, "
        f"vocabulary {seconds[1]:.1f} s, examples {seconds[2]:.1f} s; "
        f"{train['tokens']:,} tokens in {train['shards']} shards",
        flush=True,
    )


if __name__ == "__main__":
    main()
