"""The sides of `benchmarks/quality.py`: our preset `budget`, and the usual script at its best."""

import json
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
# The usual script is tuned over these at full length, and on beyond the best one; then over these
# shares of warm-up at the best rate.
RATES = (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3)
WARM_UPS = (0.1, 0.02, 0.3)
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


class Usual:
    """The usual script. What has a result in the folder is not run again."""

    def __init__(self, data: Data, folder: Path, minutes: float, size: str) -> None:
        self._context = StageContext(store=data.store)
        self._folder = folder / f"usual-{size}-{minutes:g}"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._arguments = ["--store", data.store.url, "--size", size,
                           "--examples", data.examples.fingerprint]  # fmt: skip
        self._minutes = minutes

    def tune(self, rates: Sequence[float], warm_ups: Sequence[float]) -> list[str]:
        """Choose how it is started, then the rate, then the warm-up; what was tried, in lines."""
        is_fast = compute_dtype("auto", "cpu") == torch.bfloat16
        ways = [
            Way(*way)
            for way in product(
                (1, 2), ("float32", "bf16") if is_fast else ("float32",), (False, True)
            )
        ]
        paces = {
            way: self._result(f"probe-{number}", way)["steps_per_second"]
            for number, way in enumerate(ways)
        }
        self._way = max(paces, key=lambda way: paces[way])
        self._pace = paces[self._way]
        self._warm_up = warm_ups[0]
        losses: dict[float, float] = {}
        waiting = list(rates)
        while waiting:
            self._rate = waiting.pop(0)
            losses[self._rate] = self.run(0).curve[-1]["loss"]
            if not waiting:  # the best must not be at the edge of what was tried
                best = min(losses, key=lambda rate: losses[rate])
                waiting = [
                    beyond
                    for beyond, edge in ((best * 2, max(losses)), (best / 2, min(losses)))
                    if best == edge
                ]
        self._rate = min(losses, key=lambda rate: losses[rate])
        by_warm_up: dict[float, float] = {}
        for self._warm_up in warm_ups:
            by_warm_up[self._warm_up] = self.run(0).curve[-1]["loss"]
        self._warm_up = min(by_warm_up, key=lambda share: by_warm_up[share])
        return [
            "The usual script, steps a second: "
            + "; ".join(f"{way}: {pace:.2f}" for way, pace in paces.items()),
            f"Loss after {self._minutes:g} minutes by rate: "
            + ", ".join(f"{rate:g}: {losses[rate]:.3f}" for rate in sorted(losses)),
            f"By share of warm-up at {self._rate:g}: "
            + ", ".join(f"{share:g}: {loss:.3f}" for share, loss in by_warm_up.items()),
        ]

    def run(self, seed: int) -> Run:
        """With the rate and the warm-up that were chosen."""
        name = f"run-{self._rate:g}-{self._warm_up:g}-{seed}"
        result = self._result(
            name, self._way, "--minutes", str(self._minutes), "--rate", str(self._pace),
            "--points", str(NUM_POINTS), "--learning-rate", str(self._rate),
            "--warm-up", str(self._warm_up), "--seed", str(seed),
        )  # fmt: skip
        curve = result["curve"]
        return Run(
            curve=curve,
            encoder=existing_encoder(str(self._folder / name), self._context),
            num_tokens=curve[-1]["tokens"],
            num_steps=result["num_steps"],
        )

    def _result(self, name: str, way: Way, *arguments: str) -> dict[str, Any]:
        out = self._folder / name
        if not (out / "result.json").is_file():
            launcher = [sys.executable]
            if way.ranks > 1:
                launcher += ["-m", "torch.distributed.run", "--standalone",
                             f"--nproc-per-node={way.ranks}"]  # fmt: skip
            subprocess.run(
                [*launcher, str(ROOT / "benchmarks" / "usual_training.py"), *self._arguments,
                 *way.arguments(), "--out", str(out), *arguments],
                check=True, cwd=ROOT,
            )  # fmt: skip
        result: dict[str, Any] = json.loads((out / "result.json").read_text())
        return result
