"""Does adapting a published encoder to the texts of a task help or hurt?

    python benchmarks/adapted_encoder.py --encoder FOLDER --home SCRATCH
    python benchmarks/adapted_encoder.py --encoder FOLDER --home SCRATCH --tasks sst2 --steps 30

A published encoder in a folder (measured: all-MiniLM-L6-v2, six layers of width 384, without a
masked-token head) is fine-tuned with few labels, as it is (preset own-encoder) and after continued
pretraining on unlabelled texts of the task (preset continue). Both use the command line; only the
number of steps is smaller than the preset's. The presets' former learning rates, which did not
follow the encoder's size, are measured too. Needs ../shared/data. Results in --home are reused, so
an interrupted measurement resumes.
"""

import argparse
import csv
import itertools
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import ROOT, one_of, report

DATA = ROOT.parent / "shared" / "data"
Row = tuple[str, str]  # a text and its label

MAX_WORDS = 60  # of a labelled review
MIN_WORDS = 6  # of SST-2's phrases; many shorter ones are single words
MAX_TEXTS = 6000
# The presets as they are, and with the rates they had before these followed the encoder's size.
SIDES = {
    "as published": (),
    "adapted": (),
    "adapted, former rates": ("pretraining.learning_rate=5e-4", "finetuning.learning_rate=1e-3"),
}
ONE_SEED = ("adapted, former rates",)
NOTE = (
    "Presets own-encoder and continue, with {steps} adaptation steps of 32 examples of at most 128 "
    "tokens. imdb: 6,000 unlabelled reviews, 400 labels, 600 held-out "
    "reviews, cut to 60 words. sst2: 18,000 phrases without labels, 600 labels, the published 872 "
    "held-out sentences. Accuracy and loss of masked tokens are on held-out texts after the "
    "adaptation; the baseline is the most frequent token. All seeds of a fine-tuning use the same "
    "adapted encoder. Random choice: 50%."
)


def imdb() -> tuple[list[str], list[Row], list[Row]]:
    """Unlabelled reviews, 400 labelled ones to train on, 600 held out."""
    with (DATA / "imdb" / "labelled.csv").open(newline="", encoding="utf-8") as file:
        rows = [(" ".join(text.split()[:MAX_WORDS]), label) for text, label in csv.reader(file)][1:]
    with (DATA / "imdb" / "unlabelled.txt").open(encoding="utf-8") as file:
        texts = [line.strip() for line in itertools.islice(file, MAX_TEXTS)]
    return texts, rows[:400], rows[-600:]


def sst2() -> tuple[list[str], list[Row], list[Row]]:
    """Phrases without their labels, 600 with them, the published 872 held-out sentences."""

    def rows(name: str) -> Iterator[Row]:
        for line in (DATA / "glue" / "SST-2" / name).read_text(encoding="utf-8").splitlines()[1:]:
            text, label = line.split("\t")
            yield text.strip(), label

    train = [row for row in rows("train.tsv") if len(row[0].split()) >= MIN_WORDS]
    return [text for text, _ in train[600:]][: 3 * MAX_TEXTS], train[:600], list(rows("dev.tsv"))


TASKS = {"imdb": imdb, "sst2": sst2}


def write_files(task: str, folder: Path) -> tuple[Path, Path, Path]:
    """Write the files of a task: texts, labelled rows, held-out rows."""
    folder.mkdir(parents=True, exist_ok=True)
    texts, train, heldout = TASKS[task]()
    corpus = folder / f"{task}.txt"
    corpus.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return (
        corpus,
        _write_csv(folder / f"{task}-train.csv", train),
        _write_csv(folder / f"{task}-heldout.csv", heldout),
    )


def _write_csv(path: Path, rows: Iterable[Row]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def finetuned(
    arguments: argparse.Namespace, task: str, seed: int, side: str, values: Sequence[str]
) -> dict[str, Any]:
    """The results of one fine-tuning, cached in --home."""
    cache = arguments.home / f"{task}-{side}-{seed}-{arguments.steps}.json".replace(" ", "-")
    if cache.exists():
        return json.loads(cache.read_text())
    corpus, train, heldout = write_files(task, arguments.home / "data")
    options = ["--encoder", str(arguments.encoder.resolve())]
    options += ["--labels", str(train), "--heldout", str(heldout)]
    values = [
        "finetuning.compare_with_random=false", "finetuning.num_evaluations=1",
        f"finetuning.seed={seed}", *values,
    ]  # fmt: skip
    if side.startswith("adapted"):
        options += ["--corpus", str(corpus), "--layout", "line"]
        values += [
            f"pretraining.num_steps={arguments.steps}", "pretraining.final_evaluation_examples=500",
            f"pretraining.evaluate_every_steps={max(1, arguments.steps // 2)}",
        ]  # fmt: skip
    options += [part for value in values for part in ("--set", value)]
    print("$ bertsmith finetune", *options, flush=True)
    command = [sys.executable, "-c", "from flows.cli import main; main()", "finetune"]
    before = _manifests(arguments.home, "finetuned").keys()
    subprocess.run([*command, "--home", str(arguments.home), *options], check=True, cwd=ROOT)
    (model,) = (
        each for name, each in _manifests(arguments.home, "finetuned").items() if name not in before
    )
    encoder = _manifests(arguments.home, "encoder").get(model["inputs"]["encoder"])
    result = {
        "accuracy": model["statistics"]["eval/accuracy"],
        "rate": model["settings"]["learning_rate"],
        "majority": model["statistics"]["baseline/accuracy"],
    }
    if encoder is not None:
        statistics = encoder["statistics"]
        result |= {
            "pretraining rate": encoder["settings"]["learning_rate"],
            "masked": statistics["eval/mlm_accuracy"],
            "masked, most frequent": statistics["baseline/mlm_accuracy"],
            "loss": statistics["eval/mlm_loss"],
            "minutes": statistics["training_seconds"] / 60,
        }
    cache.write_text(json.dumps(result))
    return result


def _manifests(home: Path, kind: str) -> dict[str, dict[str, Any]]:
    found = (home / "store" / kind).glob("*/manifest.json")
    return {path.parent.name: json.loads(path.read_text()) for path in found}


def row(task: str, side: str, results: Sequence[Mapping[str, float]]) -> str:
    """A table row: one side of a task, over its seeds."""
    scores = [100 * each["accuracy"] for each in results]
    first = results[0]
    adapted = ["", "", ""]
    if "loss" in first:
        adapted = [
            f"{first['pretraining rate']:.2g}, {first['minutes']:.1f} min",
            f"{100 * first['masked']:.1f}% ({100 * first['masked, most frequent']:.1f}%)",
            f"{first['loss']:.2f}",
        ]
    accuracy = [f"{fmean(scores):.1f}", " ".join(f"{score:.1f}" for score in scores)]
    cells = [task, side, *adapted, f"{first['rate']:.2g}", *accuracy]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--home", type=Path, required=True, help="folder for all files")
    parser.add_argument("--tasks", nargs="+", type=one_of(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--steps", type=int, default=30, help="adaptation steps")
    parser.add_argument("--sides", nargs="+", type=one_of(SIDES), default=list(SIDES))
    arguments = parser.parse_args()
    lines = [
        "| task | encoder | adaptation rate, time | masked tokens (most frequent) | loss "
        "| fine-tuning rate | accuracy | by seed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task, side in itertools.product(arguments.tasks, arguments.sides):
        seeds = arguments.seeds[:1] if side in ONE_SEED else arguments.seeds
        results = [finetuned(arguments, task, seed, side, SIDES[side]) for seed in seeds]
        lines.append(row(task, side, results))
    report(
        "adapted_encoder",
        "A published encoder adapted to a task's texts",
        [*lines, "", NOTE.format(steps=arguments.steps)],
    )


if __name__ == "__main__":
    main()
