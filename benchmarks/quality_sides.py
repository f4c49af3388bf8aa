"""The sides of `benchmarks/quality.py`: our preset `budget`, and the usual script at its best."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.alternating import ROOT
from benchmarks.usual_training import HELDOUT_EXAMPLES
from bert_core.backends.context import compute_dtype
from pipelines.recipes.files import read_recipe
from pipelines.settings import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.stages.corpus.settings import CorpusSettings, TextFiles
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.examples.stage import ExampleSettings, build_examples
from pipelines.stages.pretraining.stage import build_encoder
from pipelines.stages.vocabulary.stage import VocabularySettings, build_vocabulary
from pipelines.store import Artifact, ArtifactStore
from pipelines.train.imported import existing_encoder

NOVELS = ROOT.parent / "shared" / "data" / "corpus" / "english_novels"
# The usual script is tuned at full length: first over the windows of a step, then over these rates
# and on beyond the best one, then over these shares of warm-up.
BATCHES = (8, 16, 32)
RATES = (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3)
WARM_UPS = (0.1, 0.02, 0.3)
# Large blocks stay with the process: without it a third of the time went into fresh pages.
KEPT_MEMORY = {
    "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_TOP_PAD_": str(1 << 26)
}  # fmt: skip
NUM_POINTS = 12  # of a curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One side after its minutes, from one seed."""

    curve: list[dict[str, float]]  # seconds and loss on the same held-out text
    encoder: Artifact
    num_tokens: float
    num_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What both sides read."""

    store: ArtifactStore
    vocabulary: Artifact
    examples: Artifact


class Way(NamedTuple):
    """How the usual script is started: what is fastest is chosen."""

    ranks: int
    precision: str
    compiled: bool

    def arguments(self) -> list[str]:
        return ["--precision", self.precision, *(["--compiled"] if self.compiled else [])]

    def __str__(self) -> str:
        processes = "1 process" if self.ranks == 1 else f"{self.ranks} processes"
        return f"{processes}, {self.precision}{', compiled' if self.compiled else ''}"


def prepare(folder: Path, num_files: int | None) -> Data:
    store = ArtifactStore(str(folder / "store"))
    context = StageContext(store=store, runtime=RuntimeSettings(num_workers=2))
    files = tuple(str(path) for path in sorted(NOVELS.glob("*_*.txt"))[:num_files])
    sources = CorpusSettings(sources=(TextFiles(paths=files),), heldout_fraction=0.125)
    corpus = build_corpus(sources, context)
    vocabulary = build_vocabulary(VocabularySettings(), corpus, context)
    examples = build_examples(ExampleSettings(objective="mlm"), corpus, vocabulary, context)
    return Data(store=store, vocabulary=vocabulary, examples=examples)


def ours(data: Data, minutes: float, size: str, seed: int) -> Run:
    """`budget` for so many minutes, its evaluations among them."""
    overrides = [
        f"pretraining.size={size}", f"pretraining.budget_minutes={minutes:g}",
        f"pretraining.seed={seed}", "pretraining.checkpoint_every_steps=1000000000",
        f"pretraining.evaluation_examples={HELDOUT_EXAMPLES}",
        f"pretraining.final_evaluation_examples={HELDOUT_EXAMPLES}",
    ]  # fmt: skip
    settings = read_recipe("budget", overrides).pretraining
    context = StageContext(store=data.store, runtime=RuntimeSettings())
    encoder = build_encoder(settings, data.examples, data.vocabulary, context)
    figures = encoder.statistics
    points = json.loads(encoder.local("history.json").read_text())
    each = figures["training_seconds"] / figures["num_steps"]
    curve = [
        {"seconds": point["step"] * each, "loss": point["eval/mlm_loss"]}
        for point in points if "eval/mlm_loss" in point
    ]  # fmt: skip
    return Run(
        curve=curve,
        encoder=encoder,
        num_tokens=figures["num_tokens"],
        num_steps=figures["num_steps"],
    )


class Choice(NamedTuple):
    """What the usual script is tuned by."""

    batch: int
    rate: float
    warm_up: float

    def arguments(self) -> list[str]:
        return ["--batch", str(self.batch), "--learning-rate", str(self.rate),
                "--warm-up", str(self.warm_up)]  # fmt: skip


class Usual:
    """The usual script. What has a result in the folder is not run again."""

    def __init__(self, data: Data, folder: Path, minutes: float, size: str) -> None:
        self._context = StageContext(store=data.store)
        self._folder = folder / f"usual-{size}-{minutes:g}"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._arguments = ["--store", data.store.url, "--size", size,
                           "--examples", data.examples.fingerprint]  # fmt: skip
        self._minutes = minutes

    def tune(
        self, batches: Sequence[int], rates: Sequence[float], warm_ups: Sequence[float]
    ) -> list[str]:
        """Choose how it is started, then batch, rate and warm-up; what was tried, in lines."""
        is_fast = compute_dtype("auto", "cpu") == torch.bfloat16
        ways = [
            Way(*way)
            for way in product(
                (1, 2), ("float32", "bf16") if is_fast else ("float32",), (False, True)
            )
        ]
        self._choice = Choice(batches[-1], rates[len(rates) // 2], warm_ups[0])
        paces = {way: self._pace(way) for way in ways}
        self._way = max(paces, key=lambda way: paces[way])
        lines = [
            f"The usual script, steps of {self._choice.batch} windows a second: "
            + "; ".join(f"{way}: {pace:.2f}" for way, pace in paces.items())
        ]
        lines.append(self._tuned("batch", batches))
        lines.append(self._tuned("rate", rates, goes_on=True))
        lines.append(self._tuned("warm_up", warm_ups))
        return lines

    def run(self, seed: int, times: int = 1) -> Run:
        """With what was chosen, for the minutes or several times as long."""
        name = "-".join(f"{value:g}" for value in (*self._choice, seed))
        if times > 1:
            name += f"-times-{times}"
        result = self._result(
            f"run-{name}", self._way, "--minutes", str(self._minutes * times),
            "--rate", str(self._pace(self._way)), "--points", str(NUM_POINTS),
            "--seed", str(seed),
        )  # fmt: skip
        curve = result["curve"]
        return Run(
            curve=curve,
            encoder=existing_encoder(str(self._folder / f"run-{name}"), self._context),
            num_tokens=curve[-1]["tokens"],
            num_steps=result["num_steps"],
        )

    def _tuned(self, field: str, values: Sequence[float], *, goes_on: bool = False) -> str:
        """Choose the value with the least last loss; doubled or halved if it `goes_on` there."""
        losses: dict[float, float] = {}
        waiting = list(values)
        while waiting:
            value = waiting.pop(0)
            self._choice = self._choice._replace(**{field: value})
            losses[value] = self.run(0).curve[-1]["loss"]
            best = min(losses, key=lambda tried: losses[tried])
            if not waiting and goes_on:  # the best must not be at the edge of what was tried
                beyond = {max(losses): best * 2, min(losses): best / 2}
                waiting = [beyond[best]] if best in beyond else []
        self._choice = self._choice._replace(**{field: best})
        tried = ", ".join(f"{value:g}: {losses[value]:.3f}" for value in sorted(losses))
        return f"Loss after {self._minutes:g} minutes by {field.replace('_', '-')}: {tried}"

    def _pace(self, way: Way) -> float:
        """Steps a second, measured once."""
        name = f"probe-{way.ranks}-{way.precision}-{way.compiled}-{self._choice.batch}"
        pace: float = self._result(name, way)["steps_per_second"]
        return pace

    def _result(self, name: str, way: Way, *arguments: str) -> dict[str, Any]:
        out = self._folder / name
        if not (out / "result.json").is_file():
            launcher = [sys.executable]
            if way.ranks > 1:
                launcher += ["-m", "torch.distributed.run", "--standalone",
                             f"--nproc-per-node={way.ranks}"]  # fmt: skip
            subprocess.run(
                [*launcher, str(ROOT / "benchmarks" / "usual_training.py"), *self._arguments,
                 *way.arguments(), *self._choice.arguments(), "--out", str(out), *arguments],
                check=True, cwd=ROOT, env={**os.environ, **KEPT_MEMORY},
            )  # fmt: skip
        result: dict[str, Any] = json.loads((out / "result.json").read_text())
        return result
