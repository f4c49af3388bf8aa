"""What ten minutes are worth: our pretraining against the usual script, to the same clock.

    python benchmarks/quality.py
    python benchmarks/quality.py --minutes 1 --tune-minutes 0.3    # to see it run

The same novels (about 70 of 80 to train on, the rest held out), vocabulary, machine and minutes of
training, BERT-mini: our recipes `budget` and `original` through the stage, with Ray and checkpoints
as anyone runs them; and `benchmarks/usual_training.py`, whose learning rate is tuned first for each
of its two models, and which runs in one process or two, whichever is faster. All are judged by the
same masks of the same held-out novels, in the format of either training: windows of running text,
and sentence pairs. Then each encoder is fine-tuned alike on SST-2 (`benchmarks/downstream.py`).
Evaluations are on nobody's clock. The picture goes to docs/pictures. Needs ../shared/data and
`pip install -e .[benchmarks]`.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import downstream
from benchmarks.alternating import ROOT, report
from benchmarks.quality_sides import Run, Usual, ours, prepare
from benchmarks.usual_training import HELDOUT_EXAMPLES
from bert_core.batch import PretrainingBatch
from bert_core.model.catalogue import Model, PretrainingModel
from bert_core.model.encoder import cross_entropy_sum
from pipelines.artifacts import Artifact
from pipelines.stages.examples.batches import ExampleReader, evaluation_batches

PICTURE = ROOT / "docs" / "pictures" / "quality.svg"
# Judged by the same masks in the same format.
COMPARED = {"usual, masked tokens": "ours, budget", "usual, with pairs": "ours, original"}
COLOURS = {
    "ours, budget": "#1f6f8b",
    "ours, original": "#8fc1d4",
    "usual, masked tokens": "#d1603d",
    "usual, with pairs": "#e8b39e",
}


@torch.no_grad()
def heldout(model: Model, examples: Artifact) -> tuple[float, float]:
    """Loss and accuracy of the same masked tokens, whatever `model` was trained on."""
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


def draw(runs: Mapping[str, Run]) -> None:
    """A panel for each format: curves of one are not to be held against those of the other."""
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, format_name, names in zip(
        panels, ("windows of text", "sentence pairs"), COMPARED.items(), strict=True
    ):
        for name in (each for each in names if each in runs):
            minutes = [point["seconds"] / 60 for point in runs[name].curve]
            losses = [point["loss"] for point in runs[name].curve]
            axes.plot(minutes, losses, "o-", color=COLOURS[name], markersize=3, label=name)
        axes.set_title(format_name, fontsize=9)
        axes.set_xlabel("minutes of training")
        axes.legend(fontsize=8, frameon=False)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("held-out loss of masked tokens")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, format="svg", metadata={"Date": None})


def table(
    runs: Mapping[str, Run],
    judged: Mapping[str, list[tuple[float, float]]],
    tasks: Mapping[str, downstream.Found],
) -> list[str]:
    """A row a side, then what the curves say of each other."""
    lines = [
        "| side | how | trained for | tokens seen | loss, windows | perplexity | accuracy "
        "| loss, pairs | accuracy | SST-2, by seed | mean |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, run in runs.items():
        (loss, accuracy), (pair_loss, pair_accuracy) = judged[name]
        seeds = tasks[name].accuracies
        lines.append(
            f"| {name} | {run.how} | {run.curve[-1]['seconds']:.0f} s | "
            f"{run.num_tokens / 1e6:.2f} M | {loss:.3f} | "
            f"{np.exp(loss):.1f} | {accuracy:.1%} | {pair_loss:.3f} | {pair_accuracy:.1%} | "
            f"{', '.join(f'{found:.1%}' for found in seeds)} | {np.mean(seeds):.1%} |"
        )
    lines.append("")
    lines += [f"- SST-2, {name}: {each}." for name, each in tasks.items()]
    for name, ours_name in COMPARED.items():
        if name in runs and ours_name in runs:
            last = runs[name].curve[-1]
            reached = seconds_until(runs[ours_name].curve, last["loss"])
            when = "never" if reached is None else f"after {reached:.0f} s"
            lines.append(
                f"- {name}: its last loss, {last['loss']:.3f} after {last['seconds']:.0f} s, "
                f"{ours_name} reached {when}"
                + (f" ({reached / last['seconds']:.0%} of its time)" if reached else "")
                + f"; after those {last['seconds']:.0f} s it stood at "
                f"{loss_after(runs[ours_name].curve, last['seconds']):.3f}."
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
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
        judged = {
            name: [heldout(run.model, examples) for examples in (data.windows, data.pairs)]
            for name, run in runs.items()
        }
        tokenizer = downstream.tokenizer_in(Path(data.vocabulary.local_folder()))
        tasks = {
            name: downstream.Found.kept(
                folder / f"sst2 of {name}.json", partial(downstream.found, run.model, tokenizer)
            )
            for name, run in runs.items()
        }
        draw(runs)
        title = f"BERT-{size} after {minutes:g} minutes: ours and the usual script"
        report("quality", title, table(runs, judged, tasks))


if __name__ == "__main__":
    main()
