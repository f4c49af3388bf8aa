"""Does bf16 increase the loss? Loss curves in bf16, in float32 and of the reference.

    python benchmarks/precision_curves.py
    python benchmarks/precision_curves.py --steps 20 --files 2

A tiny BERT on English novels, through our own corpus, vocabulary and examples: the same batches,
initial weights and learning rates for ours in bf16, ours in float32 and `transformers` in float32
(torch's AdamW), without dropout, which would draw other masks there. More seeds of ours, with other
weights and another order, show how much equivalent runs differ. The picture is written to
docs/pictures. Needs ../shared/data.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import ROOT, report
from benchmarks.reference_batches import register_packed_attention
from benchmarks.usual_stack import Pretraining, load_ours, their_config
from bert_core.backends.precision import Precision
from bert_core.batch import PretrainingBatch
from bert_core.config import EncoderConfig, encoder_config
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.loop import train
from bert_core.training.optimization import AdamW, OptimizationConfig
from pipelines.artifacts import ArtifactStore
from pipelines.stage import StageContext
from pipelines.stages.corpus.settings import CorpusSettings, PlainText
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.examples.batches import ExampleReader, micro_batches
from pipelines.stages.examples.stage import ExampleSettings, build_examples
from pipelines.stages.vocabulary.stage import VocabularySettings, build_vocabulary

NOVELS = ROOT.parent / "shared" / "data" / "corpus" / "english_novels"
PICTURE = ROOT / "docs" / "pictures" / "precision_curves.svg"
EXAMPLES = 32  # per step
SEEDS = (1, 2, 3)  # in addition to seed 0, which every precision runs
WINDOW = 50  # steps averaged for a point of the smoothed curve
Batches = Callable[[int], PretrainingBatch]


def novels(folder: Path, num_files: int) -> tuple[ExampleReader, int]:
    """Examples of the first novels, and the size of their vocabulary."""
    context = StageContext(store=ArtifactStore(str(folder)), num_workers=2)
    files = tuple(str(path) for path in sorted(NOVELS.glob("*_*.txt"))[:num_files])
    corpus = build_corpus(CorpusSettings(sources=(PlainText(paths=files),)), context)
    vocabulary = build_vocabulary(VocabularySettings(), corpus, context)
    examples = build_examples(ExampleSettings(), corpus, vocabulary, context)
    size = len((Path(vocabulary.local_folder()) / "vocab.txt").read_text("utf-8").split("\n")) - 1
    return ExampleReader(examples, "train"), size


def batches(reader: ExampleReader, seed: int) -> Batches:
    """The batches of a run with `seed`, by step."""

    def read(step: int) -> PretrainingBatch:
        ((_, batch),) = micro_batches(
            reader, seed=seed, step=step, global_batch_size=EXAMPLES, micro_batch_size=EXAMPLES
        )
        return batch

    return read


def new_model(config: EncoderConfig, seed: int) -> PretrainingModel:
    torch.manual_seed(seed)
    return PretrainingModel(config)


def our_curve(
    model: PretrainingModel,
    read: Batches,
    optimization: OptimizationConfig,
    seed: int,
    precision: Precision,
) -> NDArray[np.float64]:
    """The loss of every step."""
    steps = train(
        model,
        AdamW(model, optimization),
        lambda step: [(0, read(step))],
        seed=seed,
        precision=precision,
    )
    return np.array([float(report.loss) for report in steps])


def their_curve(
    start: PretrainingModel, read: Batches, optimization: OptimizationConfig
) -> NDArray[np.float64]:
    """The same for `transformers` in float32, from the weights of `start`, with torch's AdamW."""
    attention = register_packed_attention()
    model = Pretraining(their_config(start.config, attn_implementation=attention)).train()
    load_ours(model.reference, start)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim > 1]},
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=optimization.learning_rate,
        betas=optimization.betas,
        eps=optimization.eps,
        weight_decay=optimization.weight_decay,
    )
    losses = []
    for step in range(optimization.num_steps):
        for group in optimizer.param_groups:
            group["lr"] = optimization.learning_rate_at(step)
        loss = model(*model.arguments(read(step)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return np.array(losses)


def curves(reader: ExampleReader, vocab_size: int, steps: int) -> Iterator[tuple[str, NDArray]]:
    """The name and the losses of every run."""
    config = encoder_config("tiny", vocab_size, hidden_dropout=0.0, attention_dropout=0.0)
    optimization = OptimizationConfig(num_steps=steps, warmup_steps=steps // 10, learning_rate=1e-3)
    read = batches(reader, 0)
    yield "ours, bf16", our_curve(new_model(config, 0), read, optimization, 0, "bf16")
    yield "ours, float32", our_curve(new_model(config, 0), read, optimization, 0, "float32")
    yield "transformers, float32", their_curve(new_model(config, 0), read, optimization)
    for seed in SEEDS:
        losses = our_curve(
            new_model(config, seed), batches(reader, seed), optimization, seed, "bf16"
        )
        yield f"ours, bf16, seed {seed}", losses


def smoothed(losses: NDArray) -> NDArray:
    """The running mean over `WINDOW` steps, or as many as there are."""
    window = min(WINDOW, len(losses))
    return np.convolve(losses, np.ones(window) / window, mode="valid")


def draw(runs: dict[str, NDArray]) -> None:
    """Smoothed curves, and below them their differences from ours in float32."""
    figure = Figure(figsize=(7.2, 6.0), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    reference = smoothed(runs["ours, float32"])
    steps = np.arange(len(reference)) + len(runs["ours, float32"]) - len(reference)
    shown = slice(None, None, max(1, len(steps) // 250))
    colours = {"ours, bf16": "#1f6f8b", "ours, float32": "#d1603d"}
    colours["transformers, float32"] = "#5b8c5a"
    for name, losses in reversed(runs.items()):
        colour = colours.get(name, "#bbbbbb")
        curve = smoothed(losses)
        style = "--" if name == "transformers, float32" else "-"
        upper.plot(steps[shown], curve[shown], style, color=colour, linewidth=1.3, label=name)
        lower.plot(steps[shown], (curve - reference)[shown], style, color=colour, linewidth=1.3)
    upper.set_ylabel(f"loss, mean of {min(WINDOW, len(losses))} steps")
    lower.set_ylabel("difference from ours, float32")
    lower.set_xlabel("optimizer step")
    upper.legend(fontsize=8, frameon=False)
    for axes in (upper, lower):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, format="svg", metadata={"Date": None})


def table(runs: dict[str, NDArray]) -> list[str]:
    """Differences of smoothed curves from ours in float32, and those between seeds."""
    last = {name: smoothed(losses) for name, losses in runs.items()}
    reference = last["ours, float32"]
    lines = [
        "| run | last loss | last difference | mean difference | largest difference |",
        "|---|---|---|---|---|",
    ]
    for name, curve in last.items():
        difference = curve - reference
        lines.append(
            f"| {name} | {curve[-1]:.4f} | {difference[-1]:+.4f} | {np.abs(difference).mean():.4f} "
            f"| {np.abs(difference).max():.4f} |"
        )
    first = np.array([losses[0] for name, losses in runs.items() if "seed" not in name])
    lines += ["", f"Losses of the first step, before any update, agree to {np.ptp(first):.1e}."]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--files", type=int, default=12, help="novels to read")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reader, vocab_size = novels(Path(folder), arguments.files)
        runs = {}
        for name, losses in curves(reader, vocab_size, arguments.steps):
            print(name, f"{losses[-1]:.4f}", flush=True)
            runs[name] = losses
    draw(runs)
    note = (
        f"tiny, vocabulary {vocab_size:,}, {EXAMPLES} examples of at most 128 tokens per step, "
        f"{arguments.steps:,} steps, {arguments.files} novels, no dropout. Differences are those "
        f"of running means over {WINDOW} steps from ours in float32; those of other seeds are the "
        "noise. Picture: docs/pictures/precision_curves.svg."
    )
    report("precision_curves", "Precision and the loss", [*table(runs), "", note])


if __name__ == "__main__":
    main()
