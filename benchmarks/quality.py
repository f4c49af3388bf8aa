"""What ten minutes are worth: our pretraining against the usual script, to the same clock.

    python benchmarks/quality.py
    python benchmarks/quality.py --minutes 1 --tune-minutes 0.3    # to see it run

The same novels (about 70 of 80 to train on, the rest held out), vocabulary, machine and minutes of
training, BERT-mini: our recipes `budget` and `original` through the stage, with Ray and checkpoints
as anyone runs them; and `benchmarks/usual_training.py`, whose learning rate is tuned first for each
of its two models, and which runs in one process or two, whichever is faster. All are judged by the
same masks of the same held-out novels, in the format of either training: windows of running text,
and sentence pairs. Then each encoder is fine-tuned alike on SST-2's first 8,000 sentences by the
fine-tuning stage, beside random weights, TF-IDF, and `budget` after fewer minutes. Our minutes
include our evaluations, those of the usual script do not; the seconds of curves are those of steps
alone. The picture goes to docs/pictures. Needs
../shared/data and `pip install -e .[benchmarks]`.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure

from pipelines.settings import RuntimeSettings

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import ROOT, report
from benchmarks.quality_sides import Data, Run, Usual, ours, prepare
from benchmarks.tasks import TASKS, dataset, random_encoder, seed_scores
from benchmarks.usual_training import HELDOUT_EXAMPLES
from bert_core.batch import PretrainingBatch
from bert_core.model.catalogue import PretrainingModel
from bert_core.model.encoder import cross_entropy_sum
from bert_core.training.state import load_model
from pipelines.cluster import connect, disconnect
from pipelines.stage import StageContext
from pipelines.stages.evaluation import build_baselines
from pipelines.stages.examples.batches import ExampleReader, evaluation_batches
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.finetuning.stage import build_task_model
from pipelines.store import Artifact

PICTURE = ROOT / "docs" / "pictures" / "quality.svg"
# Judged by the same masks in the same format.
COMPARED = {"usual, masked tokens": "ours, budget", "usual, with pairs": "ours, original"}
COLOURS = {
    "ours, budget": "#1f6f8b",
    "ours, original": "#8fc1d4",
    "usual, masked tokens": "#d1603d",
    "usual, with pairs": "#e8b39e",
}
RANDOM = "random weights"
TFIDF = "baseline/TF-IDF/accuracy"
# Of SST-2, for every encoder: the rates that did best for most of them on 2026-11-22.
FINETUNING = FinetuningSettings(
    learning_rate=2e-4, embeddings_rate=10, dropout=0.1, pooling="mean", num_evaluations=1,
    num_seeds=3,
)  # fmt: skip
FINETUNED = "AdamW at 2e-4, embeddings at 2e-3, five epochs, a head over the mean of all tokens"


@torch.no_grad()
def heldout(run: Run, examples: Artifact) -> tuple[float, float]:
    """Loss and accuracy of the same masked tokens, whatever a side was trained on."""
    model = load_model(run.encoder.local_folder())
    assert isinstance(model, PretrainingModel)
    loss = correct = count = 0.0
    reader = ExampleReader(examples, "heldout")
    for _, batch in evaluation_batches(reader, 8192, max_examples=HELDOUT_EXAMPLES):
        assert isinstance(batch, PretrainingBatch)
        hidden = model.encoder(batch.tokens, None, batch.masked_positions)
        logits = model.vocabulary_head(hidden, model.encoder.embeddings)
        loss += cross_entropy_sum(logits, batch.masked_labels).item()
        correct += (logits.argmax(-1) == batch.masked_labels).sum().item()
        count += batch.masked_labels.numel()
    return loss / count, correct / count


class Point(NamedTuple):
    """SST-2 after so many minutes of one side."""

    side: str
    minutes: float
    accuracies: list[float]  # of the development set, by seed

    def __str__(self) -> str:
        seeds = ", ".join(f"{each:.1%}" for each in self.accuracies)
        return f"{self.side}, {self.minutes:g} minutes: {seeds}; mean {fmean(self.accuracies):.1%}"


def sentiment(
    encoders: Sequence[tuple[str, float, Artifact]], data: Data, folder: Path
) -> tuple[list[Point], float]:
    """SST-2 from random weights and from each side's encoder, and the accuracy of TF-IDF."""
    context = StageContext(
        store=data.store, runtime=RuntimeSettings(num_workers=2, training_workers=1)
    )
    items = dataset(TASKS["SST-2"], folder, context)
    random = random_encoder(encoders[0][-1], folder, context)
    points = []
    for side, minutes, encoder in [(RANDOM, 0.0, random), *encoders]:
        model = build_task_model(FINETUNING, items, encoder, context)
        points.append(Point(side, minutes, seed_scores(model, "eval/accuracy")))
        print(points[-1], flush=True)
    return points, build_baselines(items, data.store).statistics[TFIDF]


def seconds_until(curve: list[dict[str, float]], loss: float) -> float | None:
    """When a curve first came to `loss`, on the line between two points; None if it never did."""
    before = None
    for point in curve:
        if point["loss"] <= loss:
            if before is None:
                return point["seconds"]
            share = (before["loss"] - loss) / (before["loss"] - point["loss"])
            return before["seconds"] + share * (point["seconds"] - before["seconds"])
        before = point
    return None


def loss_after(curve: list[dict[str, float]], seconds: float) -> float:
    """What a curve says after so many seconds, on the line between two points, or at its end."""
    return float(np.interp(seconds, [each["seconds"] for each in curve],
                           [each["loss"] for each in curve]))  # fmt: skip


def draw(runs: Mapping[str, Run], points: Sequence[Point], tfidf: float) -> None:
    """Loss over minutes, a panel for each format that was trained on; and SST-2 over minutes."""
    formats = {
        name: [side for side in sides if side in runs]
        for name, sides in zip(("windows of text", "sentence pairs"), COMPARED.items(), strict=True)
    }
    formats = {name: sides for name, sides in formats.items() if sides}
    figure = Figure(figsize=(3.6 * (len(formats) + 1), 3.6), layout="constrained")
    *losses, accuracies = figure.subplots(1, len(formats) + 1)
    for axes, (name, sides) in zip(losses, formats.items(), strict=True):
        for side in sides:
            times = [point["seconds"] / 60 for point in runs[side].curve]
            values = [point["loss"] for point in runs[side].curve]
            axes.plot(times, values, "o-", color=COLOURS[side], markersize=3, label=side)
        axes.set_title(f"held-out loss of masked tokens, {name}", fontsize=9)
    for side in runs:
        found = [each for each in points if each.side in (RANDOM, side)]
        times = [each.minutes for each in found]
        means = [100 * fmean(each.accuracies) for each in found]
        spread = [100 * stdev(each.accuracies) for each in found]
        accuracies.errorbar(times, means, spread, fmt="o-", color=COLOURS[side], markersize=3,
                            capsize=2, label=side)  # fmt: skip
    accuracies.axhline(100 * tfidf, color="black", linestyle="--", linewidth=1, label="TF-IDF")
    accuracies.set_title("SST-2 after fine-tuning, accuracy in percent", fontsize=9)
    for axes in (*losses, accuracies):
        axes.set_xlabel("minutes of training")
        axes.legend(fontsize=8, frameon=False)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, format="svg", metadata={"Date": None})


def table(runs: Mapping[str, Run], data: Data) -> list[str]:
    """A row a side, then what the curves say of each other."""
    lines = [
        "| side | how | trained for | tokens seen | loss, windows | perplexity | accuracy "
        "| loss, pairs | accuracy |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, run in runs.items():
        (loss, accuracy), (pair_loss, pair_accuracy) = (
            heldout(run, examples) for examples in (data.windows, data.pairs)
        )
        lines.append(
            f"| {name} | {run.how} | {run.curve[-1]['seconds']:.0f} s | "
            f"{run.num_tokens / 1e6:.2f} M | {loss:.3f} | "
            f"{np.exp(loss):.1f} | {accuracy:.1%} | {pair_loss:.3f} | {pair_accuracy:.1%} |"
        )
    lines.append("")
    for name, ours_name in COMPARED.items():
        if name in runs and ours_name in runs:
            last = runs[name].curve[-1]
            reached = seconds_until(runs[ours_name].curve, last["loss"])
            when = "never" if reached is None else f"after {reached:.0f} s"
            lines.append(
                f"- {name}: its last loss, {last['loss']:.3f} after {last['seconds']:.0f} s, "
                f"{ours_name} reached {when}"
                + (f" ({reached / last['seconds']:.0%} of its time)" if reached else "")
                + f"; after those {last['seconds']:.0f} s it was at "
                f"{loss_after(runs[ours_name].curve, last['seconds']):.3f}."
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--fewer", type=float, nargs="*", default=[2.5, 5.0], help="minutes of budget for SST-2"
    )
    parser.add_argument("--tune-minutes", type=float, help="a quarter of the minutes by default")
    parser.add_argument("--size", default="mini")
    parser.add_argument("--files", type=int, help="of the novels; by default all")
    parser.add_argument("--folder", type=Path, help="to go on in: finished sides are not run again")
    parser.add_argument("--sides", type=lambda names: names.split(";"), default=list(COLOURS))
    arguments = parser.parse_args()
    minutes, size = arguments.minutes, arguments.size
    tune_minutes = arguments.tune_minutes or minutes / 4
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        data = prepare(folder, arguments.files)
        sides = {
            "ours, budget": lambda: ours(data, data.windows, "budget", minutes, size),
            "usual, masked tokens": lambda: Usual(data, "mlm", folder, size).run(
                minutes, tune_minutes
            ),
            "ours, original": lambda: ours(data, data.pairs, "original", minutes, size),
            "usual, with pairs": lambda: Usual(data, "pretraining", folder, size).run(
                minutes, tune_minutes
            ),
        }
        runs = {name: side() for name, side in sides.items() if name in arguments.sides}
        rows = table(runs, data)
        print("\n".join(rows), flush=True)
        fewer = [
            ("ours, budget", each, ours(data, data.windows, "budget", each, size).encoder)
            for each in (arguments.fewer if "ours, budget" in runs else ())
        ]
        whole = [(name, minutes, run.encoder) for name, run in runs.items()]
        connect()
        points, tfidf = sentiment([*fewer, *whole], data, folder)
        disconnect()
        draw(runs, points, tfidf)
        rows += ["", f"SST-2, 8,000 sentences, {FINETUNED}. TF-IDF with a linear model: "
                 f"{tfidf:.1%}.", "", *(f"- {each}" for each in points)]  # fmt: skip
        title = f"BERT-{size} after {minutes:g} minutes: ours and the usual script"
        report("quality", title, rows)


if __name__ == "__main__":
    main()
