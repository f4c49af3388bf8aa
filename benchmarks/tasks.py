"""How good an encoder is at every task of the paper: real data, compared with baselines.

    python benchmarks/tasks.py --encoder FOLDER                 # all tasks, three seeds
    python benchmarks/tasks.py --encoder FOLDER --only MRPC,CoLA --seeds 1

Each row is the fine-tuning stage with its trials (`finetuning.num_seeds`): the published training
and development parts, one model per CPU at a time, from the encoder and from random weights of its
shape with the same budget. A constant guess and the task's baselines (TF-IDF, words and shapes,
...) are shown as in every evaluation. What exists in `--folder` is not trained again. Times are
those of one training run on one core, whatever else ran.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pipelines.settings import RuntimeSettings

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import ROOT, report
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.state import load_model, save_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.cluster import connect, disconnect
from pipelines.stage import StageContext
from pipelines.stages.dataset.settings import DatasetSettings, LabelledFile
from pipelines.stages.dataset.stage import build_dataset
from pipelines.stages.evaluation import build_baselines
from pipelines.stages.figures import beside
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.finetuning.stage import build_task_model
from pipelines.store import Artifact, ArtifactStore
from pipelines.train.imported import existing_encoder

DATA = ROOT.parent / "shared" / "data"
GLUE = DATA / "glue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task's data, and how long to train on it."""

    family: str
    train: Path
    heldout: Path | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    epochs: float = 3
    first_lines: int | None = None  # of the training part
    seeds: int | None = None  # fewer than the others, to save time
    settings: dict[str, Any] = field(default_factory=dict)
    score: str = ""  # to show; by default the family's main one


STS_B = {"text_column": "sentence1", "second_text_column": "sentence2", "label_column": "score"}
TASKS = {
    "SST-2": Task(
        family="classification", train=GLUE / "SST-2/train.tsv", heldout=GLUE / "SST-2/dev.tsv",
        columns={"text_column": "sentence"}, first_lines=8001,
    ),
    "CoLA": Task(
        family="classification", train=GLUE / "CoLA/train.tsv", heldout=GLUE / "CoLA/dev.tsv",
        columns={"no_header": True, "text_column": "4", "label_column": "2"}, score="eval/matthews",
    ),
    "MRPC": Task(
        family="classification", train=GLUE / "MRPC/train.tsv", heldout=GLUE / "MRPC/dev.tsv",
        columns={"text_column": "#1 String", "second_text_column": "#2 String",
                 "label_column": "Quality"},
    ),
    "SMS spam": Task(
        family="classification", train=DATA / "sms_spam/SMSSpamCollection.tsv", epochs=2,
        columns={"no_header": True, "text_column": "2", "label_column": "1"},
    ),
    "STS-B": Task(
        family="regression", train=GLUE / "STS-B/train.tsv", heldout=GLUE / "STS-B/dev.tsv",
        columns=STS_B,
    ),
    "STS-B as cosines": Task(
        family="sentence_embedding", train=GLUE / "STS-B/train.tsv", heldout=GLUE / "STS-B/dev.tsv",
        columns=STS_B, settings={"micro_batch_size": 32},
    ),
    "WNUT-17": Task(
        family="tagging", train=DATA / "ner/wnut17train.conll",
        heldout=DATA / "ner/emerging.dev.conll", epochs=4,
    ),
    "CODAH": Task(
        family="multiple_choice", train=DATA / "multiple_choice/codah.tsv",
        columns={"no_header": True, "text_column": "2", "label_column": "7",
                 "choice_columns": ("3", "4", "5", "6")},
    ),
    "SQuAD": Task(
        family="question_answering", train=DATA / "squad/train-subset-v1.1.json",
        heldout=DATA / "squad/dev-sample-v1.1.json", epochs=2, seeds=1,
        settings={"search": {}},
    ),
}  # fmt: skip


class Rates(NamedTuple):
    """The learning rate of the layers, and multiples of it to try for the embeddings."""

    layers: float
    embeddings: Sequence[float]


def dataset(task: Task, folder: Path, context: StageContext) -> Artifact:
    """The items of a task; its training part is cut if the task says so."""
    path = task.train
    if task.first_lines is not None:
        path = folder / f"{task.first_lines}-{task.train.parent.name}-{task.train.name}"
        lines = task.train.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[: task.first_lines]), encoding="utf-8")
    source = LabelledFile(
        path=str(path), heldout_path=str(task.heldout) if task.heldout else "",
        **task.columns,
    )  # fmt: skip
    settings = DatasetSettings(family=task.family, source=source)
    return build_dataset(settings, None, context)


def random_encoder(of: Artifact, folder: Path, context: StageContext) -> Artifact:
    """An encoder of the same shape and vocabulary with random weights."""
    target = folder / f"random-{of.fingerprint}"
    if not target.exists():
        config = load_model(of.local_folder()).config
        torch.manual_seed(0)
        save_model(target, PretrainingModel(config))
        WordPieceTokenizer.from_directory(of.local_folder()).save(target)
    return existing_encoder(str(target), context)


def measured(
    task: Task, items: Artifact, encoder: Artifact, rates: Rates, seeds: int, context: StageContext
) -> Artifact:
    """The best model of all seeds, with the best of the rates for the embeddings."""
    tried = {"search": {"embeddings_rate": rates.embeddings}}
    settings = FinetuningSettings.model_validate(
        {
            "num_epochs": task.epochs, "learning_rate": rates.layers, "global_batch_size": 32,
            "micro_batch_size": 16, "num_evaluations": 1, "num_seeds": task.seeds or seeds,
            **(tried if rates.embeddings[1:] else {"embeddings_rate": rates.embeddings[0]}),
            **task.settings,
        }
    )  # fmt: skip
    return build_task_model(settings, items, encoder, context)


def seed_scores(model: Artifact, score: str) -> list[float]:
    """The score of each seed's model."""
    trials = json.loads(model.local("trials.json").read_text(encoding="utf-8"))
    return [each["figures"][score] for each in trials]


def cell(statistics: dict[str, Any], name: str) -> str:
    """`81.2 ± 0.4`, in percent, or the figure of the only seed."""
    if f"deviation/{name}" not in statistics:
        return f"{100 * statistics[name]:.1f}"
    return f"{100 * statistics[f'mean/{name}']:.1f} ± {100 * statistics[f'deviation/{name}']:.1f}"


def row(name: str, task: Task, items: Artifact, models: list[Artifact], baselines: Artifact) -> str:
    score = task.score or items.statistics["score"]
    metric = score.removeprefix("eval/")
    constant = items.statistics.get(f"baseline/{metric}", 0.0)
    found = beside(baselines.statistics, metric)
    simple = ", ".join(f"{baseline} {100 * value:.1f}" for baseline, value in found.items())
    counts, seconds = items.statistics["items"], []
    for model in models:
        each = model.statistics
        seconds.append(each.get("mean/training_seconds", each["training_seconds"]))
    pretrained, random = (cell(model.statistics, score) for model in models)
    seeds = models[0].statistics.get("num_seeds", 1)
    return (
        f"| {name} | {task.family} | {counts['train']:,} / {counts['heldout']:,} | "
        f"{metric.replace('_', ' ')} | {100 * constant:.1f} | {simple or '–'} | {random} | "
        f"**{pretrained}** | {seeds} | {seconds[0]:.0f} s, {seconds[1]:.0f} s |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", required=True, type=Path, help="folder, ours or published")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/tasks"), help="folder of the store"
    )
    parser.add_argument("--only", type=lambda names: names.split(","), default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument(
        "--embeddings-rates", type=float, nargs="+", default=[1, 10], help="multiples of the rate"
    )
    parser.add_argument("--description", default="", help="of the encoder")
    arguments = parser.parse_args()
    unknown = set(arguments.only) - TASKS.keys()
    if unknown:
        parser.error(f"--only must name tasks of {', '.join(TASKS)}; found {', '.join(unknown)}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    store = ArtifactStore(str(arguments.folder.absolute() / "store"))
    context = StageContext(store=store, runtime=RuntimeSettings(num_workers=2, training_workers=1))
    encoder = existing_encoder(str(arguments.encoder), context)
    connect()
    rates = Rates(arguments.rate, arguments.embeddings_rates)
    times = " or ".join(f"{each:g}" for each in rates.embeddings)
    lines = [
        f"{arguments.description or arguments.encoder.name}. AdamW at {rates.layers:g}, 32 items "
        f"per step, linear decay, dropout 0.1; the embeddings at {times} times that rate, chosen "
        "by the first seed's held-out score for each start. Scores in percent, mean and standard "
        "deviation over the seeds. Times are those of one training run on one core.",
        "",
        "| task | family | train / held out | score | constant guess | baselines | random weights "
        "| the encoder | seeds | times |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in arguments.only:
        task = TASKS[name]
        items = dataset(task, arguments.folder, context)
        models = [
            measured(task, items, start, rates, arguments.seeds, context)
            for start in (encoder, random_encoder(encoder, arguments.folder, context))
        ]
        baselines = build_baselines(items, store)
        lines.append(row(name, task, items, models, baselines))
        print(lines[-1], flush=True)
    disconnect()
    report("tasks", "How good an encoder is at each task", lines)


if __name__ == "__main__":
    main()
