"""What is an encoder of one's own worth on film reviews: from nothing, and from a published one?

    python benchmarks/own_domain.py --home SCRATCH --minutes 10 30
    python benchmarks/own_domain.py --home SCRATCH --minutes --published FOLDER --adapt 0 30

By the commands that a person types. From nothing: preset budget on 50,000 unlabelled reviews, for
so many minutes. From something: a published encoder as it is (0 minutes), and after so many minutes
of the reviews (preset continue). Each is fine-tuned with the first 100, 500, ... labelled reviews
(preset own-encoder) and judged on the last 4,000, beside TF-IDF with a linear model
(docs/tasks.md). Needs ../shared/data. What exists in --home is not computed again, so that an
interrupted measurement goes on. Run it on a quiet machine: the minutes are of the clock.
"""

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import ROOT, report
from pipelines.tasks import Answers, Items, family

IMDB = ROOT.parent / "shared" / "data" / "imdb"
PICTURE = ROOT / "docs" / "pictures" / "own_domain.svg"
NUM_HELDOUT = 4000
MAX_TOKENS = 256  # a review has 230 words; of longer ones the end is cut
PRETRAINING = {
    "budget": (
        f"examples.max_tokens={MAX_TOKENS}", "pretraining.global_batch_size=16",
        "pretraining.micro_batch_size=8",
    ),
    "continue": (f"examples.max_tokens={MAX_TOKENS}", "pretraining.num_steps=null"),
}  # fmt: skip
TFIDF = "TF-IDF, linear model"


class Way(NamedTuple):
    """How an encoder came about."""

    name: str
    preset: str  # of its pretraining; empty for one as it was published
    minutes: float


class Found(NamedTuple):
    """What one way came to with so many labels."""

    accuracies: list[float]  # by seed
    seconds: float  # of one fine-tuning

    @property
    def told(self) -> str:
        """Mean and deviation in percent."""
        spread = f" ± {100 * stdev(self.accuracies):.1f}" if len(self.accuracies) > 1 else ""
        return f"{100 * fmean(self.accuracies):.1f}{spread}"


@cache
def reviews() -> list[dict[str, str]]:
    """The labelled reviews, in the order of the file."""
    with (IMDB / "labelled.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def written(home: Path, name: str, rows: Sequence[Mapping[str, str]]) -> Path:
    """A table of labelled reviews."""
    path = home / "data" / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, ("text", "label"))
        table.writeheader()
        table.writerows(rows)
    return path


def bertsmith(home: Path, kind: str, *words: str) -> str:
    """Run a command; returns the fingerprint of the artifact of `kind` that it made."""
    print("$ bertsmith", *words, flush=True)
    before = _names(home, kind)
    command = [sys.executable, "-c", "from flows.cli import main; main()", *words]
    subprocess.run([*command, "--home", str(home)], check=True, cwd=ROOT)
    made = _names(home, kind) - before
    if not made:
        raise SystemExit(f"{home} holds what this would make, and no record of it; take another")
    # Of several seeds the artifact of all of them is made last.
    return max(made, key=lambda name: _manifest_path(home, kind, name).stat().st_mtime)


def _names(home: Path, kind: str) -> set[str]:
    return {path.parent.name for path in (home / "store" / kind).glob("*/manifest.json")}


def _manifest_path(home: Path, kind: str, fingerprint: str) -> Path:
    return home / "store" / kind / fingerprint / "manifest.json"


def manifest(home: Path, kind: str, fingerprint: str) -> dict[str, Any]:
    """What an artifact says of itself."""
    told: dict[str, Any] = json.loads(_manifest_path(home, kind, fingerprint).read_text())
    return told


def encoder_of(way: Way, published: Path | None, home: Path) -> str:
    """What `--encoder` is given for it; it is pretrained where it was not yet."""
    if not way.preset:
        return str(published)
    kept = home / f"encoder {way.name}.txt"
    if not kept.exists():
        values = [*PRETRAINING[way.preset], f"pretraining.budget_minutes={way.minutes:g}"]
        if way.preset == "continue":
            values.append(f"pretraining.encoder={published}")
        options = [part for value in values for part in ("--set", value)]
        corpus = ("--corpus", str(IMDB / "unlabelled.txt"), "--layout", "line")
        kept.write_text(bertsmith(home, "encoder", "pretrain", way.preset, *corpus, *options))
    return kept.read_text()


def finetuned(way: Way, encoder: str, num_labels: int, seeds: int, home: Path) -> Found:
    """Accuracies of the fine-tunings with so many labels."""
    kept = home / f"finetuned {way.name} {num_labels}.json"
    if not kept.exists():
        train = written(home, f"train-{num_labels}", reviews()[:num_labels])
        heldout = written(home, "heldout", reviews()[-NUM_HELDOUT:])
        values = [
            "finetuning.compare_with_random=false", "finetuning.num_evaluations=1",
            f"finetuning.num_seeds={seeds}", f"finetuning.max_tokens={MAX_TOKENS}",
        ]  # fmt: skip
        options = [part for value in values for part in ("--set", value)]
        files = ("--labels", str(train), "--heldout", str(heldout))
        fingerprint = bertsmith(
            home, "finetuned", "finetune", "own-encoder", "--encoder", encoder, *files, *options
        )
        statistics = manifest(home, "finetuned", fingerprint)["statistics"]
        trials = home / "store" / "finetuned" / fingerprint / "trials.json"
        figures = (
            [each["figures"] for each in json.loads(trials.read_text())]
            if trials.exists()
            else [statistics]
        )
        seconds = fmean(each["training_seconds"] for each in figures)
        kept.write_text(json.dumps([[each["eval/accuracy"] for each in figures], seconds]))
    return Found(*json.loads(kept.read_text()))


def tfidf(num_labels: int) -> float:
    """The accuracy of the baseline that every evaluation shows."""
    task = family("classification")

    def items(rows: Sequence[Mapping[str, str]]) -> Items:
        return Items([task.item(row) for row in rows], ("neg", "pos"))

    heldout = items(reviews()[-NUM_HELDOUT:])
    (values,) = task.baselines(items(reviews()[:num_labels]), heldout, None).values()
    return task.figures(Answers(list(values), 0), heldout)["eval/accuracy"]


def draw(rows: Mapping[str, Mapping[int, float]]) -> None:
    """Accuracy over labels, a line a way."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, row in rows.items():
        is_baseline = name == TFIDF
        axes.plot(
            list(row), [100 * value for value in row.values()],
            "k--" if is_baseline else "o-", label=name, linewidth=1.4,
        )  # fmt: skip
    axes.set(xscale="log", xlabel="labelled reviews", ylabel="accuracy, %")
    ticks = sorted({labels for row in rows.values() for labels in row})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(PICTURE, format="svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", type=Path, required=True, help="where everything is kept")
    parser.add_argument("--minutes", type=float, nargs="*", default=[10, 30], help="from nothing")
    parser.add_argument("--published", type=Path, help="folder of an encoder")
    parser.add_argument("--adapt", type=float, nargs="*", default=[0, 30], help="minutes of it")
    parser.add_argument("--labels", type=int, nargs="+", default=[100, 500, 2000, 8000])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    home: Path = arguments.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    published = arguments.published.resolve() if arguments.published else None
    ways = [Way(f"{m:g} minutes from nothing", "budget", m) for m in arguments.minutes]
    if published is not None:
        name = published.name
        ways += [
            Way(f"{name}, adapted for {m:g} minutes", "continue", m) if m else Way(name, "", 0)
            for m in arguments.adapt
        ]
    curves: dict[str, dict[int, float]] = {TFIDF: {n: tfidf(n) for n in arguments.labels}}
    rows = {TFIDF: [f"{100 * value:.1f}" for value in curves[TFIDF].values()]}
    lines = []
    for way in ways:
        encoder = encoder_of(way, published, home)
        found = {n: finetuned(way, encoder, n, arguments.seeds, home) for n in arguments.labels}
        curves[way.name] = {n: fmean(each.accuracies) for n, each in found.items()}
        rows[way.name] = [f"{each.told} ({each.seconds:.0f} s)" for each in found.values()]
        if way.preset:
            told = manifest(home, "encoder", encoder)["statistics"]
            lines.append(
                f"{way.name}: {told['training_seconds'] / 60:.1f} min, "
                f"{told['num_steps']:,} steps, held-out perplexity "
                f"{told['eval/mlm_perplexity']:.1f}, masked tokens {told['eval/mlm_accuracy']:.1%}."
            )
    draw(curves)
    header = " | ".join(f"{n:,} labels" for n in arguments.labels)
    table = [f"| way | {header} |", "|---|" + "---|" * len(arguments.labels)]
    table += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    note = (
        f"Accuracy in percent on {NUM_HELDOUT:,} reviews, mean and deviation over "
        f"{arguments.seeds} seeds, in brackets the time of one fine-tuning. Encoders read "
        f"{MAX_TOKENS} tokens of a review, TF-IDF all of it."
    )
    report("own_domain", "An encoder of one's own, on film reviews", [*table, "", note, *lines])


if __name__ == "__main__":
    main()
