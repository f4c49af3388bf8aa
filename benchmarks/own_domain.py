"""How good is your own encoder for film reviews, pretrained from nothing or adapted?

    python benchmarks/own_domain.py --home SCRATCH --minutes 10 30
    python benchmarks/own_domain.py --home SCRATCH --minutes --published FOLDER --adapt 0 30

All through the command line. From nothing: preset budget on 50,000 unlabelled reviews, for each of
--minutes. Adapted: a published encoder as it is (0 minutes), and after each of --adapt minutes on
the reviews (preset continue). Each is fine-tuned with 100, 500, ... labelled reviews by seed
(preset own-encoder) and evaluated on 4,000 others; the baseline is TF-IDF with a linear model
(docs/tasks.md). Needs ../shared/data. Results in --home are reused, so an interrupted measurement
resumes. Run it on an idle machine: the minutes are wall-clock time.
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
MAX_TOKENS = 256  # a review has 230 words; the end of longer ones is cut
PRETRAINING = {
    "budget": (
        f"examples.max_tokens={MAX_TOKENS}", "pretraining.global_batch_size=16",
        "pretraining.micro_batch_size=8",
    ),
    "continue": (f"examples.max_tokens={MAX_TOKENS}", "pretraining.num_steps=null"),
}  # fmt: skip
TFIDF = "TF-IDF, linear model"


class Variant(NamedTuple):
    """How an encoder is made."""

    name: str
    preset: str  # of its pretraining; empty for a published encoder as it is
    minutes: float


class Result(NamedTuple):
    """The result of one fine-tuning."""

    accuracy: float
    seconds: float


@cache
def reviews() -> list[dict[str, str]]:
    """The labelled reviews, in file order."""
    with (IMDB / "labelled.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def training_part(num_labels: int, seed: int) -> list[dict[str, str]]:
    """The reviews that a seed learns from: others than the seeds before, while there are enough."""
    known = reviews()[:-NUM_HELDOUT]
    first = min(seed * num_labels, len(known) - num_labels)
    return known[first : first + num_labels]


def write_table(home: Path, name: str, rows: Sequence[Mapping[str, str]]) -> Path:
    """Write labelled reviews to a table."""
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
        raise SystemExit(f"{home} has what this would make, but no record of it; use another")
    # With several seeds, the artifact of all of them is made last.
    return max(made, key=lambda name: _manifest_path(home, kind, name).stat().st_mtime)


def _names(home: Path, kind: str) -> set[str]:
    return {path.parent.name for path in (home / "store" / kind).glob("*/manifest.json")}


def _manifest_path(home: Path, kind: str, fingerprint: str) -> Path:
    return home / "store" / kind / fingerprint / "manifest.json"


def manifest(home: Path, kind: str, fingerprint: str) -> dict[str, Any]:
    """The manifest of an artifact."""
    found: dict[str, Any] = json.loads(_manifest_path(home, kind, fingerprint).read_text())
    return found


def encoder_of(variant: Variant, published: Path | None, home: Path) -> str:
    """The value of `--encoder` for a variant, which is pretrained if it does not exist yet."""
    if not variant.preset:
        return str(published)
    cache = home / f"encoder {variant.name}.txt"
    if not cache.exists():
        values = [*PRETRAINING[variant.preset], f"pretraining.budget_minutes={variant.minutes:g}"]
        if variant.preset == "continue":
            values.append(f"pretraining.encoder={published}")
        options = [part for value in values for part in ("--set", value)]
        corpus = ("--corpus", str(IMDB / "unlabelled.txt"), "--layout", "line")
        cache.write_text(
            bertsmith(
                home, "encoder", "run", variant.preset, "--until", "pretraining", *corpus, *options
            )
        )
    return cache.read_text()


def finetuned(variant: Variant, encoder: str, num_labels: int, seed: int, home: Path) -> Result:
    """Accuracy and time of the fine-tuning of one seed."""
    cache = home / f"finetuned {variant.name} {num_labels} {seed}.json"
    if not cache.exists():
        train = write_table(home, f"train-{num_labels}-{seed}", training_part(num_labels, seed))
        heldout = write_table(home, "heldout", reviews()[-NUM_HELDOUT:])
        values = [
            "finetuning.compare_with_random=false", "finetuning.num_evaluations=1",
            f"finetuning.seed={seed}", f"finetuning.max_tokens={MAX_TOKENS}",
        ]  # fmt: skip
        options = [part for value in values for part in ("--set", value)]
        files = ("--labels", str(train), "--heldout", str(heldout))
        fingerprint = bertsmith(
            home,
            "finetuned",
            "run",
            "own-encoder",
            "--until",
            "finetuning",
            "--encoder",
            encoder,
            *files,
            *options,
        )
        statistics = manifest(home, "finetuned", fingerprint)["statistics"]
        cache.write_text(json.dumps([statistics["eval/accuracy"], statistics["training_seconds"]]))
    return Result(*json.loads(cache.read_text()))


def tfidf(num_labels: int, seed: int) -> float:
    """The accuracy of TF-IDF, a baseline that every evaluation shows."""
    task = family("classification")

    def items(rows: Sequence[Mapping[str, str]]) -> Items:
        return Items([task.item(row) for row in rows], ("neg", "pos"))

    heldout = items(reviews()[-NUM_HELDOUT:])
    (values,) = task.baselines(items(training_part(num_labels, seed)), heldout).values()
    return task.figures(Answers(list(values), 0), heldout)["eval/accuracy"]


def in_percent(accuracies: Sequence[float]) -> str:
    """Mean and standard deviation."""
    spread = f" ± {100 * stdev(accuracies):.1f}" if len(accuracies) > 1 else ""
    return f"{100 * fmean(accuracies):.1f}{spread}"


def draw(rows: Mapping[str, Mapping[int, float]]) -> None:
    """Draw accuracy over labels, one line per variant."""
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
    parser.add_argument("--home", type=Path, required=True, help="folder for all files")
    parser.add_argument("--minutes", type=float, nargs="*", default=[10, 30], help="from nothing")
    parser.add_argument("--published", type=Path, help="folder of a published encoder")
    parser.add_argument("--adapt", type=float, nargs="*", default=[0, 30], help="minutes")
    parser.add_argument("--labels", type=int, nargs="+", default=[100, 500, 2000, 8000])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    home: Path = arguments.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    published = arguments.published.absolute() if arguments.published else None
    variants = [Variant(f"{m:g} minutes from nothing", "budget", m) for m in arguments.minutes]
    if published is not None:
        name = published.name
        variants += [
            Variant(f"{name}, adapted for {m:g} minutes" if m else name, "continue" if m else "", m)
            for m in arguments.adapt
        ]
    labels, seeds = arguments.labels, range(arguments.seeds)
    baseline = {n: [tfidf(n, seed) for seed in seeds] for n in labels}
    curves = {TFIDF: {n: fmean(each) for n, each in baseline.items()}}
    rows = {TFIDF: [in_percent(each) for each in baseline.values()]}
    lines = []
    for variant in variants:
        encoder = encoder_of(variant, published, home)
        found = {n: [finetuned(variant, encoder, n, s, home) for s in seeds] for n in labels}
        curves[variant.name] = {n: fmean(r.accuracy for r in each) for n, each in found.items()}
        rows[variant.name] = [
            f"{in_percent([result.accuracy for result in each])} "
            f"({fmean(result.seconds for result in each):.0f} s)"
            for each in found.values()
        ]
        if variant.preset:
            statistics = manifest(home, "encoder", encoder)["statistics"]
            lines.append(
                f"{variant.name}: {statistics['training_seconds'] / 60:.1f} min, "
                f"{statistics['num_steps']:,} steps, held-out perplexity "
                f"{statistics['eval/mlm_perplexity']:.1f}, masked tokens "
                f"{statistics['eval/mlm_accuracy']:.1%}."
            )
    draw(curves)
    header = " | ".join(f"{n:,} labels" for n in labels)
    table = [f"| encoder | {header} |", "|---|" + "---|" * len(labels)]
    table += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    note = (
        f"Accuracy in percent on {NUM_HELDOUT:,} reviews, mean and standard deviation over "
        f"{len(seeds)} seeds, each with labels of its own, time of one fine-tuning in brackets. "
        f"Encoders read {MAX_TOKENS} tokens of a review, TF-IDF all of it."
    )
    report("own_domain", "Your own encoder on film reviews", [*table, "", note, *lines])


if __name__ == "__main__":
    main()
