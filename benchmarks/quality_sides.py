"""The sides of `benchmarks/quality.py`: our recipes, and the usual script at its best."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.alternating import ROOT
from benchmarks.usual_training import HELDOUT_EXAMPLES
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
RATES = (5e-4, 1e-3)  # that the usual script is tuned over, and on beyond the better one
NUM_POINTS = 8  # of the usual script's curve
EVALUATE_EVERY = {"budget": 400, "original": 20}  # steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One side after its minutes."""

    curve: list[dict[str, float]]  # seconds and loss on held-out text of its own format
    encoder: Artifact
    num_tokens: float
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What all sides read."""

    store: ArtifactStore
    vocabulary: Artifact
    windows: Artifact  # examples of running text
    pairs: Artifact  # of sentence pairs


def prepare(folder: Path, num_files: int | None) -> Data:
    store = ArtifactStore(str(folder / "store"))
    context = StageContext(store=store, runtime=RuntimeSettings(num_workers=2, training_workers=1))
    files = tuple(str(path) for path in sorted(NOVELS.glob("*_*.txt"))[:num_files])
    sources = CorpusSettings(sources=(TextFiles(paths=files),), heldout_fraction=0.125)
    corpus = build_corpus(sources, context)
    vocabulary = build_vocabulary(VocabularySettings(), corpus, context)
    windows, pairs = (
        build_examples(ExampleSettings(objective=objective), corpus, vocabulary, context)
        for objective in ("mlm", "mlm_nsp")
    )
    return Data(store=store, vocabulary=vocabulary, windows=windows, pairs=pairs)


def ours(data: Data, examples: Artifact, recipe: str, minutes: float, size: str) -> Run:
    """One of our recipes for so many minutes, its evaluations among them."""
    overrides = [
        f"pretraining.size={size}", f"pretraining.budget_minutes={minutes:g}",
        "examples.max_tokens=128",
    ]  # fmt: skip
    if recipe == "original":  # which says its steps, and a second length
        overrides += ["examples.short_tokens=null", "pretraining.short_steps_fraction=0.0"]
        overrides += ["pretraining.short_micro_batch_size=null", "pretraining.num_steps=null"]
    settings = read_recipe(recipe, overrides).pretraining
    settings = settings.model_copy(
        update={
            "evaluation_examples": HELDOUT_EXAMPLES,
            "final_evaluation_examples": HELDOUT_EXAMPLES,
            "evaluate_every_steps": EVALUATE_EVERY[recipe],
            "checkpoint_every_steps": 10**9,
        }
    )
    context = StageContext(
        store=data.store, runtime=RuntimeSettings(training_workers="auto")
    )  # as the commands do
    encoder = build_encoder(settings, examples, data.vocabulary, context)
    facts = encoder.statistics
    points = json.loads(encoder.local("history.json").read_text())
    each = facts["training_seconds"] / facts["num_steps"]
    curve = [
        {"seconds": point["step"] * each, "loss": point["eval/mlm_loss"]}
        for point in points if "eval/mlm_loss" in point
    ]  # fmt: skip
    how = f"{settings.optimizer} at {settings.learning_rate:g}, {facts['num_steps']} steps"
    return Run(curve=curve, encoder=encoder, num_tokens=facts["num_tokens"], how=how)


class Usual:
    """The usual script with one of its models, each run a process (or two) of its own."""

    def __init__(self, data: Data, head: str, folder: Path, size: str) -> None:
        self.head = head
        examples = data.windows if head == "mlm" else data.pairs
        self._context = StageContext(store=data.store)
        self._folder = folder / f"usual-{head}-{size}"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._arguments = ["--head", head, "--store", data.store.url, "--size", size,
                           "--examples", examples.fingerprint]  # fmt: skip

    def _told(self, name: str, ranks: int, *arguments: str) -> dict[str, Any]:
        """What a run told; one that is there, under the same name, is not made again."""
        out = self._folder / name
        if not (out / "told.json").is_file():
            script = str(ROOT / "benchmarks" / "usual_training.py")
            launcher = [sys.executable]
            if ranks > 1:
                launcher += ["-m", "torch.distributed.run", "--standalone",
                             f"--nproc-per-node={ranks}"]  # fmt: skip
            subprocess.run(
                [*launcher, script, *self._arguments, "--out", str(out), *arguments],
                check=True, cwd=ROOT,
            )  # fmt: skip
        return json.loads((out / "told.json").read_text())

    def run(self, minutes: float, tune_minutes: float) -> Run:
        """Find the faster way to start it, then the best rate, then train."""
        probes = {
            ranks: self._told(f"probe-{ranks}", ranks, "--steps", "50", "--points", "0")
            for ranks in (1, 2)
        }
        ranks = max(probes, key=lambda number: probes[number]["steps_per_second"])
        pace = ["--rate", str(probes[ranks]["steps_per_second"])]
        tuned: dict[float, float] = {}
        waiting = list(RATES)
        while waiting:
            rate = waiting.pop(0)
            told = self._told(
                f"tune-{rate:g}-{tune_minutes:g}", ranks, *pace, "--minutes", str(tune_minutes),
                "--points", "0", "--learning-rate", str(rate),
            )  # fmt: skip
            tuned[rate] = told["curve"][-1]["loss"]
            if not waiting:  # the best must not be at the edge of what was tried
                best = min(tuned, key=lambda each: tuned[each])
                waiting = [
                    edge
                    for edge, end in ((best * 2, max(tuned)), (best / 2, min(tuned)))
                    if best == end
                ]
        best = min(tuned, key=lambda rate: tuned[rate])
        name = f"run-{minutes:g}"
        told = self._told(
            name, ranks, *pace, "--minutes", str(minutes), "--points", str(NUM_POINTS),
            "--learning-rate", str(best),
        )  # fmt: skip
        found = ", ".join(f"{rate:g}: {loss:.2f}" for rate, loss in tuned.items())
        how = (
            f"AdamW at {best:g} (losses after {tune_minutes:g} min by rate: {found}), "
            f"{told['num_steps']} steps, {ranks} process{'es' if ranks > 1 else ''}"
        )
        curve = told["curve"]
        encoder = existing_encoder(str(self._folder / name), self._context)
        return Run(curve=curve, encoder=encoder, num_tokens=curve[-1]["tokens"], how=how)
