"""What minutes of pretraining are worth: our preset `budget` against the usual script at its best.

    python benchmarks/quality.py --folder build/quality
    python benchmarks/quality.py --minutes 0.5 --files 8 --seeds 1 --batches 8 --rates 1e-3

The same novels (about 70 of 80 to train on, the rest held out), vocabulary, machine and minutes of
training: `budget` through the stage, as anyone runs it, and `benchmarks/usual_training.py`, for
which the fastest way to start it is chosen, then at full length, by its held-out loss, the windows
of a step, the rate among five and on beyond the best, and the warm-up. Ours is not tuned. All are
judged by the same masks of the same held-out novels. The script then trains once more, several
times as long, to show what of the gap more time closes. Then each encoder is fine-tuned alike on
SST-2's first 8,000 sentences, with the best of four settings, beside random weights and TF-IDF. Our
minutes include our evaluations, those of the usual script neither them nor its first step. What
exists in `--folder` is not run again; the second line above only shows that all of it runs. The
picture goes to docs/pictures. Needs ../shared/data and `pip install -e .[benchmarks]`.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import ROOT, report
from benchmarks.quality_sides import BATCHES, RATES, WARM_UPS, Data, Run, Usual, ours, prepare
from benchmarks.tasks import TASKS, dataset, random_encoder
from benchmarks.usual_training import HELDOUT_EXAMPLES
from bert_core.batch import PretrainingBatch
from bert_core.model.catalogue import PretrainingModel
from bert_core.model.encoder import cross_entropy_sum
from bert_core.training.state import load_model
from pipelines.cluster import connect, disconnect
from pipelines.settings import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.stages.evaluation import build_baselines
from pipelines.stages.examples.batches import ExampleReader, evaluation_batches
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.finetuning.stage import build_task_model
from pipelines.store import Artifact

PICTURE = ROOT / "docs" / "pictures" / "quality.svg"
OURS, USUAL, LONGER = "Bertsmith, budget", "usual script", "usual script, longer"
COLOURS = {OURS: "#1f6f8b", USUAL: "#d1603d", LONGER: "#e8b04b"}
TFIDF = "baseline/TF-IDF/accuracy"
# Of SST-2, for every encoder alike.
FINETUNING = FinetuningSettings.model_validate(
    {
        "num_epochs": 5, "pooling": "mean", "num_evaluations": 1, "validation_items": 0,
        "search": {"learning_rate": (3e-4, 1e-3), "embeddings_rate": (1, 10)},
    }
)  # fmt: skip
FINETUNED = (
    "SST-2, 8,000 sentences, five epochs, a head over the mean of all tokens; for every encoder "
    "the best of two rates (3e-4, 1e-3), for the embeddings once or ten times as high, by the same "
    "development set."
)


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


def sentiment(
    encoders: Mapping[str, Sequence[Artifact]], data: Data, folder: Path
) -> tuple[dict[str, list[float]], float]:
    """SST-2's accuracy of each side's encoders and of random weights, and that of TF-IDF."""
    context = StageContext(store=data.store, runtime=RuntimeSettings(num_workers=2))
    items = dataset(TASKS["SST-2"], folder, context)
    random = random_encoder(encoders[OURS][0], folder, context)
    accuracies: dict[str, list[float]] = {}
    for side, of_side in {"random weights": [random] * len(encoders[OURS]), **encoders}.items():
        accuracies[side] = []
        for seed, encoder in enumerate(of_side):
            settings = FINETUNING.model_copy(update={"seed": seed})
            model = build_task_model(settings, items, encoder, context)
            accuracies[side].append(model.statistics["eval/accuracy"])
            print(side, accuracies[side][-1], model.statistics["chosen"], flush=True)
    return accuracies, build_baselines(items, data.store).statistics[TFIDF]


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


def when(curve: list[dict[str, float]], loss: float) -> str:
    """`seconds_until` in words."""
    seconds = seconds_until(curve, loss)
    return "never" if seconds is None else f"after {seconds:.0f} s"


def in_percent(values: Sequence[float]) -> str:
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * fmean(values):.1f}{spread}%"


def table(runs: Mapping[str, list[Run]], data: Data) -> list[str]:
    """A row a side, then how long ours took to the usual script's last loss."""
    lines = [
        "| side | steps | tokens seen | held-out loss | perplexity | masked-token accuracy |",
        "|---|---|---|---|---|---|",
    ]
    for side, of_side in runs.items():
        losses, accuracies = zip(*(heldout(run, data.examples) for run in of_side), strict=True)
        spread = f" ± {stdev(losses):.3f}" if len(losses) > 1 else ""
        lines.append(
            f"| {side} | {fmean(run.num_steps for run in of_side):,.0f} "
            f"| {fmean(run.num_tokens for run in of_side) / 1e6:.1f} M "
            f"| {fmean(losses):.3f}{spread} | {np.exp(fmean(losses)):.1f} "
            f"| {in_percent(accuracies)} |"
        )
    lines.append("")
    for side in (USUAL, LONGER):
        for seed, usual in enumerate(runs[side]):
            own = runs[OURS][seed]
            last, own_last = usual.curve[-1], own.curve[-1]
            lines.append(
                f"- {side}, seed {seed}: last loss {last['loss']:.3f} after "
                f"{last['seconds']:.0f} s; `budget`: {own_last['loss']:.3f} after "
                f"{own_last['seconds']:.0f} s. To the other's last loss: `budget` "
                f"{when(own.curve, last['loss'])}, {side} {when(usual.curve, own_last['loss'])}."
            )
    return lines


def draw(
    runs: Mapping[str, list[Run]], accuracies: Mapping[str, list[float]], tfidf: float
) -> None:
    """Loss over minutes, a line a seed; and SST-2 beside random weights and TF-IDF."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    losses, scores = figure.subplots(1, 2)
    for place, (side, of_side) in enumerate(runs.items()):
        for run in of_side:
            times = [point["seconds"] / 60 for point in run.curve]
            label = side if run is of_side[0] else None
            losses.plot(times, [point["loss"] for point in run.curve], "o-", markersize=3,
                        color=COLOURS[side], label=label)  # fmt: skip
        values = [100 * value for value in accuracies[side]]
        scores.plot([place] * len(values), values, "o", color=COLOURS[side])
    random = 100 * fmean(accuracies["random weights"])
    scores.axhline(random, color="grey", linestyle=":", linewidth=1, label="random weights")
    scores.axhline(100 * tfidf, color="black", linestyle="--", linewidth=1, label="TF-IDF")
    scores.set_xticks(range(len(runs)), list(runs), fontsize=7)
    scores.set_xlim(-0.5, len(runs) - 0.5)
    losses.set_title("held-out loss of masked tokens", fontsize=9)
    losses.set_xlabel("minutes of training")
    scores.set_title("SST-2 after fine-tuning, accuracy in percent", fontsize=9)
    for axes in (losses, scores):
        axes.legend(fontsize=8, frameon=False)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, format="svg", metadata={"Date": None})


def numbers(text: str) -> list[float]:
    return [float(each) for each in text.split(",")]


def whole(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batches", type=whole, default=BATCHES, help="of the usual script")
    parser.add_argument("--rates", type=numbers, default=RATES, help="of the usual script")
    parser.add_argument("--warm-ups", type=numbers, default=WARM_UPS, help="of the usual script")
    parser.add_argument("--times", type=int, default=4, help="how much longer the script trains")
    parser.add_argument("--files", type=int, help="of the novels; by default all")
    parser.add_argument("--folder", type=Path, help="to go on in: finished runs are not run again")
    arguments = parser.parse_args()
    minutes, size, seeds = arguments.minutes, arguments.size, range(arguments.seeds)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        data = prepare(folder, arguments.files)
        usual = Usual(data, folder, minutes, size)
        tuned = usual.tune(arguments.batches, arguments.rates, arguments.warm_ups)
        runs = {
            USUAL: [usual.run(seed) for seed in seeds],
            OURS: [ours(data, minutes, size, seed) for seed in seeds],
            LONGER: [usual.run(0, arguments.times)],
        }
        rows = table(runs, data)
        print("\n".join([*rows, *tuned]), flush=True)
        connect()
        encoders = {side: [run.encoder for run in of_side] for side, of_side in runs.items()}
        accuracies, tfidf = sentiment(encoders, data, folder)
        disconnect()
        draw(runs, accuracies, tfidf)
        rows += ["", f"{FINETUNED} TF-IDF with a linear model: {tfidf:.1%}.", ""]
        rows += [f"- {side}: {in_percent(values)}" for side, values in accuracies.items()]
        rows += ["", *(f"{line}." for line in tuned)]
        title = f"BERT-{size} after {minutes:g} minutes: ours and the usual script"
        report("quality", title, rows)


if __name__ == "__main__":
    main()
