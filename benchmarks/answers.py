"""Time to a first answer, and a thousand sentences compared with transformers' pipeline.

    python benchmarks/answers.py
    python benchmarks/answers.py --sizes mini --turns 3

First answers: each command runs from a shell, in a fresh process, with a model by its name in the
registry and with the same model by its fingerprint in the store (all commands with the first size,
only `predict` with the others). The first call, which reads files from the disk and queries the
registry, is listed separately. Seconds of wall-clock and of CPU time.

A thousand sentences: SST-2's development set and the first sentences of its training set. Theirs is
`pipeline("text-classification")` with its defaults, with batches, sorted by length and with weights
in bfloat16; ours is `classify`, and the package as loaded by `mlflow.pyfunc.load_model`. All have
the same weights and both threads, are loaded beforehand and take turns in their own processes.
Weights are random, which takes the same time.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import PRECISIONS, ROOT, Side, alternate, matrix_side, report, serve
from bert_core.backends.precision import Precision
from bert_core.config import encoder_config
from bert_core.hugging_face import export_model, import_model
from bert_core.inference import classify
from bert_core.model.catalogue import build_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.recipes.runtime import DATABASE_NAME

DATA = ROOT.parent / "shared" / "data"
NUM_SENTENCES = 1000
COMMANDS: dict[str, tuple[str, dict[str, object], list[str]]] = {
    "predict": ("sequence_classification", {"num_labels": 2}, ["a fine film"]),
    "tag": ("token_classification", {"num_labels": 9}, ["Ada Lovelace wrote to Charles Babbage."]),
    "answer": ("span_prediction", {}, ["Who wrote it?", "It was written by Grace Hopper."]),
    "choose": ("multiple_choice", {}, ["She put the kettle on the", "stove.", "moon.", "cat."]),
    "rate": ("regression", {}, ["a fine film"]),
    "embed": ("encoder", {}, ["a fine film"]),
    "fill-mask": ("pretraining", {}, ["the [MASK] of the house"]),
}
OURS = ("ours, float32", "ours, bf16", "ours, by mlflow.pyfunc")
THEIRS = {  # batch, sorted by length, bfloat16
    "theirs, default": (1, False, False),
    "theirs, batches of 8": (8, False, False),
    "theirs, batches of 32": (32, False, False),
    "theirs, batches of 32, sorted": (32, True, False),
    "theirs, batches of 32, sorted, bf16": (32, True, True),
}
ENVIRONMENT = {"MLFLOW_TRACKING_URI": "", "PREFECT_API_URL": ""}


def new_tokenizer() -> WordPieceTokenizer:
    text = (DATA / "vocab" / "google_uncased_en_vocab.txt").read_text(encoding="utf-8")
    return WordPieceTokenizer(text.removesuffix("\n").split("\n"))


def sentences() -> list[str]:
    """The development set, filled up with the training set."""
    found: list[str] = []
    for part in ("dev", "train"):
        path = DATA / "glue" / "SST-2" / f"{part}.tsv"
        found += [row.split("\t")[0] for row in path.read_text(encoding="utf-8").splitlines()[1:]]
    return found[:NUM_SENTENCES]


def bertsmith(home: Path, *arguments: str) -> tuple[str, float, float]:
    """The output of a command, its seconds and its CPU seconds."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [str(Path(sys.executable).with_name("bertsmith")), *arguments],
        check=True, capture_output=True, text=True, cwd=home,
        env=os.environ | ENVIRONMENT | {"BERTSMITH_HOME": str(home)},
    )  # fmt: skip
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        done.stdout,
        seconds,
        (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime),
    )


def prepare(home: Path, size: str, commands: Sequence[str]) -> dict[str, str]:
    """Register a model for each command in `home`; returns fingerprints by command."""
    home.mkdir()
    tokenizer = new_tokenizer()
    fingerprints = {}
    for command in commands:
        head, settings, _ = COMMANDS[command]
        torch.manual_seed(0)
        folder = home / f"folder-{command}"
        model = build_model(head, encoder_config(size, tokenizer.vocab_size), **settings)
        export_model(folder, model, tokenizer, pooling="mean" if head == "encoder" else None)
        output, *_ = bertsmith(home, "import", str(folder), "--name", f"own-{command}")
        fingerprints[command] = output.partition("imported_model/")[2][:32]
    return fingerprints


def first_answers(home: Path, fingerprints: dict[str, str], turns: int) -> list[str]:
    """A row per command: its seconds, with a model by name and by fingerprint."""
    lines = [
        "| command | by registered name, first call | later calls | CPU | by fingerprint | CPU |",
        "|---|---|---|---|---|---|",
    ]
    for command, fingerprint in fingerprints.items():
        inputs, cells = COMMANDS[command][-1], []
        for model in (f"own-{command}@champion", fingerprint):
            times = [
                bertsmith(home, command, *inputs, "--model", model)[1:] for _ in range(turns + 1)
            ]
            if model != fingerprint:
                cells.append(f"{times[0][0]:.2f} s")
            medians = (statistics.median(each) for each in zip(*times[1:], strict=True))
            cells += [f"{median:.2f} s" for median in medians]
        lines.append(f"| `{command}` | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def our_step(side: str, folder: Path, home: Path) -> Callable[[], None]:
    texts = sentences()
    if side == OURS[2]:
        import mlflow
        import pandas as pd

        os.environ.update(ENVIRONMENT)
        mlflow.set_tracking_uri(f"sqlite:///{home / DATABASE_NAME}")
        package = mlflow.pyfunc.load_model("models:/own-predict@champion")
        table = pd.DataFrame({"text": texts})
        return lambda: package.predict(table) is None
    model, tokenizer = import_model(folder), WordPieceTokenizer.from_directory(folder)
    precision: Precision = "bf16" if "bf16" in side else "float32"
    return lambda: np.save(
        home / f"{side}.npy", classify(model, tokenizer, texts, precision=precision).probabilities
    )


def their_step(side: str, folder: Path, home: Path) -> Callable[[], None]:
    from transformers import pipeline

    batch, is_sorted, is_bf16 = THEIRS[side]
    answer = pipeline(
        "text-classification", model=str(folder), device="cpu", top_k=None, batch_size=batch,
        dtype=torch.bfloat16 if is_bf16 else torch.float32,
    )  # fmt: skip
    texts = sentences()

    def step() -> None:
        order = sorted(range(len(texts)), key=lambda i: len(texts[i])) if is_sorted else None
        found = answer([texts[index] for index in order] if order else texts)
        rows = [[each["score"] for each in sorted(row, key=lambda e: e["label"])] for row in found]
        probabilities = np.array(rows)
        if order:
            probabilities[order] = np.array(rows)
        np.save(home / f"{side}.npy", probabilities)

    return step


def thousand(home: Path, size: str, turns: int) -> tuple[list[str], dict[str, float]]:
    """A row per side, compared with their default and their fastest."""
    shared = ["--home", str(home), "--sizes", size]
    sides = {
        side: Side([__file__, *shared, "--side", side], num_warmups=1) for side in (*OURS, *THEIRS)
    }
    rates = {precision: matrix_side(precision) for precision in PRECISIONS}
    timings = alternate({**rates, **sides}, turns)
    least = min(timings[side].median_seconds for side in THEIRS)
    exact = min(timings[side].median_seconds for side in THEIRS if "bf16" not in side)
    reference = np.load(home / "theirs, default.npy")
    lines = ["| side | seconds | sentences/s | over their default | over their fastest in "
             "this precision | largest difference |", "|---|---|---|---|---|---|"]  # fmt: skip
    default = timings["theirs, default"].median_seconds
    for side in sides:
        seconds = timings[side].median_seconds
        file = home / f"{side}.npy"
        difference = f"{np.abs(np.load(file) - reference).max():.0e}" if file.is_file() else "–"
        best = least if "bf16" in side else exact
        lines.append(
            f"| {side} | {seconds:.2f} | {NUM_SENTENCES / seconds:.0f} | {default / seconds:.1f}x "
            f"| {best / seconds:.1f}x | {difference} |"
        )
    return lines, {precision: timings[precision].best_rate for precision in PRECISIONS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", default="mini,base", type=lambda names: names.split(","))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=[*OURS, *THEIRS], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        make = our_step if arguments.side in OURS else their_step
        folder = arguments.home / "folder-predict"
        serve(make(arguments.side, folder, arguments.home), {})
        return
    lines = []
    rates: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for size in arguments.sizes:
            home = Path(temporary) / size
            is_first = size == arguments.sizes[0]
            fingerprints = prepare(home, size, list(COMMANDS) if is_first else ["predict"])
            lines += [f"## First answers, BERT-{size}", ""]
            lines += first_answers(home, fingerprints, arguments.turns)
            table, rates = thousand(home, size, arguments.turns)
            lines += ["", f"## {NUM_SENTENCES:,} sentences of SST-2, BERT-{size}", "", *table, ""]
    report("answers", "First answers, and a thousand sentences", lines[:-1], rates)


if __name__ == "__main__":
    main()
