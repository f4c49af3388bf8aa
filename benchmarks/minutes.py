"""How long a fine-tuning takes and what it reaches: our settings, shorter ones, and the Trainer.

    python benchmarks/minutes.py --encoder FOLDER --only SST-2,SMS --ways recipe,frozen,Trainer

Four tasks of 600 to 2,000 training items, and 1,300 to 5,000 held out, so that a difference of a
point is not chance; one published encoder, one training run at a time with all cores. SST-2 holds
phrases: held-out ones share no four successive words with a training item. `recipe` takes the
settings of the recipe `own-encoder`; `half` half its epochs; `embeddings` keeps the embeddings as
they are, `frozen` the lower third of the layers, too; `float32` is the recipe in that precision,
`small` has the Trainer's epochs, items a step and rate; `Trainer` is `transformers`' with defaults
(3 epochs, 8 items a step, 5e-5, float32, linear decay) and dynamic padding. Times are those of
training alone, for all sides. What exists in `--folder` is not trained again.
"""

import argparse
import csv
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import report
from benchmarks.label_errors import Rows, different, messages, opened, reviews, sentences
from benchmarks.tasks import DATA
from bert_core.training.state import load_model
from pipelines.cluster import connect, disconnect
from pipelines.io.conll import tagged_sentences
from pipelines.settings import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.stages.dataset.settings import DatasetSettings, LabelledFile
from pipelines.stages.dataset.stage import build_dataset, read_items
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.finetuning.stage import automatic_epochs, build_task_model
from pipelines.store import Artifact
from pipelines.tasks import Answers, Items, family

# Items to learn from and, at most, held out.
TASKS = {
    "SST-2": (2000, 5000), "SMS": (2000, 3000), "WNUT-17": (2000, 3000), "film reviews": (600, 2000)
}  # fmt: skip
RUN_OF_WORDS = 4
WAYS = ("recipe", "half", "embeddings", "frozen", "float32", "small", "Trainer")


class Outcome(NamedTuple):
    """The result of one training run: the main score, and seconds of training."""

    score: float
    seconds: float


def labelled(name: str, folder: Path, context: StageContext) -> Artifact:
    """The task's items."""
    count, num_heldout = TASKS[name]
    paths = [folder / f"{name}-{part}.jsonl" for part in ("train", "heldout")]
    if name == "WNUT-17":
        every = [
            {"words": each.words, "tags": each.tags}
            for each in tagged_sentences(str(DATA / "ner/wnut17train.conll"), "utf-8")
        ]
        order = np.random.default_rng(0).permutation(len(every))
        rows: list[dict[str, Any]] = [every[place] for place in order]
    else:
        texts: Rows = {"SST-2": sentences, "SMS": messages, "film reviews": reviews}[name]()
        rows = [{"text": text, "label": label} for text, label in different(texts, len(texts))]
    train, others = rows[:count], rows[count:]
    if name == "SST-2":
        known = {run for row in train for run in runs_of_words(row["text"])}
        others = [row for row in others if known.isdisjoint(runs_of_words(row["text"]))]
    for path, part in zip(paths, (train, others[:num_heldout]), strict=True):
        path.write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    source = LabelledFile(path=str(paths[0]), heldout_path=str(paths[1]))
    kind = "tagging" if name == "WNUT-17" else "classification"
    return build_dataset(DatasetSettings(family=kind, source=source), None, context)


def runs_of_words(text: str) -> set[tuple[str, ...]]:
    words = text.lower().split()
    return {tuple(words[n : n + RUN_OF_WORDS]) for n in range(len(words) - RUN_OF_WORDS + 1)}


def ours(
    way: str, seed: int, dataset: Artifact, encoder: Artifact, context: StageContext
) -> Outcome:
    num_layers = load_model(encoder.local_folder()).config.num_layers
    epochs = automatic_epochs(dataset.statistics["items"]["train"])
    changes: dict[str, Any] = {
        "recipe": {},
        "half": {"num_epochs": epochs / 2},
        "embeddings": {"freeze_embeddings": True},
        "frozen": {"freeze_embeddings": True, "freeze_layers": num_layers // 3},
        "float32": {"precision": "float32"},
        "small": {
            "num_epochs": 3, "learning_rate": 5e-5, "global_batch_size": 8, "micro_batch_size": 4,
        },
    }[way]  # fmt: skip
    settings = FinetuningSettings.model_validate({**changes, "seed": seed})
    model = build_task_model(settings, dataset, encoder, context)
    return Outcome(
        model.statistics[model.statistics["score"]], model.statistics["training_seconds"]
    )


def by_trainer(seed: int, dataset: Artifact, folder: Path) -> Outcome:
    """The Trainer with its defaults; scored as ours."""
    import transformers

    transformers.logging.set_verbosity_error()
    train, heldout = read_items(dataset, "train"), read_items(dataset, "heldout")
    task = family(dataset.statistics["family"])
    is_tagging = dataset.statistics["family"] == "tagging"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    kind = "Token" if is_tagging else "Sequence"
    torch.manual_seed(seed)
    model = getattr(transformers, f"AutoModelFor{kind}Classification").from_pretrained(
        folder, num_labels=len(train.labels)
    )
    encode = _encoded_words if is_tagging else _encoded_texts
    collate = getattr(
        transformers,
        f"DataCollator{'ForTokenClassification' if is_tagging else 'WithPadding'}",
    )(tokenizer)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(
                output_dir=scratch, save_strategy="no", logging_strategy="no", report_to=[],
                use_cpu=True, disable_tqdm=True, seed=seed,
            ),
            train_dataset=encode(train, tokenizer),
            data_collator=collate,
        )  # fmt: skip
        started = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - started
        answered = trainer.predict(encode(heldout, tokenizer))
    best = answered.predictions.argmax(axis=-1)
    if is_tagging:
        values: list[Any] = [
            [train.labels[place] for place, label in zip(row, labels, strict=True) if label != -100]
            for row, labels in zip(best, answered.label_ids, strict=True)
        ]
        # What was cut is a tag of none.
        values = [
            tags + ["O"] * (len(item["tags"]) - len(tags))
            for tags, item in zip(values, heldout.rows, strict=True)
        ]
    else:
        values = [train.labels[place] for place in best]
    return Outcome(task.figures(Answers(values, 0), heldout)[task.score], seconds)


def _encoded_texts(items: Items, tokenizer: Any) -> list[dict[str, Any]]:
    fields = tokenizer([item["text"] for item in items.rows], truncation=True)
    return [
        {**{name: values[number] for name, values in fields.items()},
         "label": items.labels.index(item["label"])}
        for number, item in enumerate(items.rows)
    ]  # fmt: skip


def _encoded_words(items: Items, tokenizer: Any) -> list[dict[str, Any]]:
    """The tag of each word at its first token."""
    words = [item["words"] for item in items.rows]
    fields = tokenizer(words, is_split_into_words=True, truncation=True)
    rows = []
    for number, item in enumerate(items.rows):
        places, labels, before = fields.word_ids(number), [], None
        for place in places:
            tag = None if place is None or place == before else item["tags"][place]
            known = tag if tag in items.labels else items.labels[0]  # an answer is read there, too
            labels.append(-100 if tag is None else items.labels.index(known))
            before = place
        rows.append({**{n: values[number] for n, values in fields.items()}, "labels": labels})
    return rows


def cell(outcomes: Sequence[Outcome]) -> str:
    scores = [100 * each.score for each in outcomes]
    spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    seconds = statistics.median(each.seconds for each in outcomes)
    return f"{statistics.fmean(scores):.1f}{spread}, {seconds:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", required=True, type=Path, help="folder of a published encoder")
    parser.add_argument("--description", default="", help="of the encoder")
    parser.add_argument("--folder", type=Path, default=Path("build/minutes"))
    parser.add_argument("--only", type=lambda names: names.split(","), default=list(TASKS))
    parser.add_argument("--ways", type=lambda names: names.split(","), default=list(WAYS))
    parser.add_argument(
        "--seeds", type=lambda seeds: [int(n) for n in seeds.split(",")], default=[0, 1, 2]
    )
    arguments = parser.parse_args()
    context, encoder = opened(arguments.folder, arguments.encoder)
    runtime = RuntimeSettings(training_workers="auto")  # as the commands do
    context = replace(context, runtime=runtime)
    kept = arguments.folder / "trainer.csv"  # of the Trainer's runs
    known: dict[tuple[str, str], Outcome] = {}
    if kept.exists():
        with kept.open(newline="") as file:
            for name, number, score, seconds in csv.reader(file):
                known[name, number] = Outcome(float(score), float(seconds))
    connect()
    lines = [
        f"{arguments.description or arguments.encoder.name}; seeds {arguments.seeds}: mean and "
        "standard deviation of the main score on the held-out items, in percent, and the median "
        "time of one training run.",
        "",
        f"| task, training items, held out | {' | '.join(arguments.ways)} |",
        f"|---|{'---|' * len(arguments.ways)}",
    ]
    for name in arguments.only:
        dataset = labelled(name, arguments.folder, context)
        sizes = dataset.statistics["items"]
        cells = []
        for way in arguments.ways:
            outcomes = []
            for seed in arguments.seeds:
                if way != "Trainer":
                    outcomes.append(ours(way, seed, dataset, encoder, context))
                    continue
                if (name, str(seed)) not in known:
                    known[name, str(seed)] = by_trainer(seed, dataset, arguments.encoder)
                    with kept.open("a", newline="") as file:
                        csv.writer(file).writerow([name, seed, *known[name, str(seed)]])
                outcomes.append(known[name, str(seed)])
            cells.append(cell(outcomes))
            print(name, way, outcomes, flush=True)
        lines.append(f"| {name}, {sizes['train']:,}, {sizes['heldout']:,} | {' | '.join(cells)} |")
    disconnect()
    report("minutes", "How long a fine-tuning takes, and what it reaches", lines)


if __name__ == "__main__":
    main()
