"""The same weights fine-tuned by `transformers`' Trainer and our loop: MRPC and 8,000 of SST-2.

    python benchmarks/trainer_tasks.py --encoder FOLDER

Both start from the same encoder (ours is exported), a new pooler and head, and use the same
hyperparameters: AdamW, 32 items per step, linear warm-up over a tenth of the steps and linear
decay, weight decay 0.01 except on biases and norms, gradients clipped to norm 1, dropout 0.1, bf16
if this machine computes in it. The Trainer is tuned: fused AdamW, batches grouped by length and
padded to their longest. Each training run has the same number of threads, and the sides alternate
by seed; times are those of the training steps alone. Scores are of the published development parts.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import report
from benchmarks.tasks import TASKS, Task, dataset
from bert_core.backends.context import compute_dtype
from bert_core.hugging_face import export_model
from bert_core.model.catalogue import EncoderModel, Model, SequenceClassifier
from bert_core.training.loop import train
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig
from bert_core.training.state import load_encoder_into, load_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.stage import StageContext
from pipelines.stages.dataset.stage import read_items
from pipelines.store import ArtifactStore
from pipelines.tasks import Items, Reading, family
from pipelines.tasks.encoding import shuffled

BATCH, DROPOUT, EPOCHS = 32, 0.1, 3
NAMES = ("MRPC", "SST-2")


class Outcome(NamedTuple):
    """The result of one training run."""

    accuracy: float
    seconds: float


class Data(NamedTuple):
    """Both parts of a task."""

    train: Items
    heldout: Items


def data_of(task: Task, folder: Path) -> Data:
    context = StageContext(store=ArtifactStore(str(folder / "store")))
    items = dataset(task, folder, context)
    return Data(read_items(items, "train"), read_items(items, "heldout"))


def ours(
    encoder: Model, tokenizer: WordPieceTokenizer, data: Data, rate: float, seed: int
) -> Outcome:
    """One fine-tuning with our loop."""
    classification = family("classification")
    reading = Reading(encoder.config.max_position_embeddings)
    torch.manual_seed(seed)
    config = replace(encoder.config, hidden_dropout=DROPOUT, attention_dropout=DROPOUT)
    model = classification.build_model(config, data.train.labels)
    assert isinstance(model, SequenceClassifier)
    fresh = {name: tensor.clone() for name, tensor in model.pooler.state_dict().items()}
    load_encoder_into(model, encoder)
    model.pooler.load_state_dict(fresh)
    examples = classification.examples(data.train, tokenizer, reading)
    num_steps = -(-len(examples) * EPOCHS // BATCH)
    optimization = OptimizationConfig(
        num_steps=num_steps, warmup_steps=num_steps // 10, learning_rate=rate
    )
    started = time.perf_counter()
    for _ in train(
        model,
        AdamW(model, optimization),
        lambda step: [(0, examples.batch(shuffled(len(examples), seed, step, BATCH)))],
        seed=seed,
    ):
        pass
    seconds = time.perf_counter() - started
    answers = classification.answers(model, tokenizer, data.heldout, reading)
    return Outcome(classification.figures(answers, data.heldout)["eval/accuracy"], seconds)


def theirs(folder: Path, data: Data, rate: float, seed: int) -> Outcome:
    """One fine-tuning with `transformers`' Trainer."""
    import transformers
    from transformers import (
        AutoTokenizer,
        BertForSequenceClassification,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    transformers.logging.set_verbosity_error()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(seed)
    model = BertForSequenceClassification.from_pretrained(
        folder, num_labels=len(data.train.labels), hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=DROPOUT,
    )  # fmt: skip
    index = {label: number for number, label in enumerate(data.train.labels)}

    def encoded(items: Items) -> list[dict[str, Any]]:
        texts = [item["text"] for item in items.rows]
        seconds = [item["second_text"] for item in items.rows]
        both = [texts] if seconds[0] is None else [texts, seconds]
        longest = model.config.max_position_embeddings
        fields = tokenizer(*both, truncation=True, max_length=longest)
        labels = [index[item["label"]] for item in items.rows]
        return [
            {**{name: values[number] for name, values in fields.items()}, "label": label}
            for number, label in enumerate(labels)
        ]

    with tempfile.TemporaryDirectory() as scratch:
        is_bf16 = compute_dtype("auto", torch.device("cpu")) == torch.bfloat16
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=scratch, num_train_epochs=EPOCHS, learning_rate=rate,
                per_device_train_batch_size=BATCH, warmup_steps=0.1, weight_decay=0.01,
                max_grad_norm=1.0, lr_scheduler_type="linear", optim="adamw_torch_fused",
                train_sampling_strategy="group_by_length", bf16=is_bf16, use_cpu=True,
                save_strategy="no", logging_strategy="no", report_to=[], seed=seed,
                disable_tqdm=True, dataloader_num_workers=0,
            ),
            train_dataset=encoded(data.train),
            data_collator=DataCollatorWithPadding(tokenizer),
        )  # fmt: skip
        started = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - started
        answered = trainer.predict(encoded(data.heldout))
    # Grouped by length, it predicts in another order; its labels are in the same order.
    right = answered.predictions.argmax(axis=1) == answered.label_ids
    return Outcome(float(np.mean(right)), seconds)


def summary(found: list[Outcome]) -> str:
    scores = [100 * each.accuracy for each in found]
    spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    each = ", ".join(f"{score:.1f}" for score in scores)
    seconds = statistics.median(outcome.seconds for outcome in found)
    return f"{statistics.fmean(scores):.1f}{spread} ({each}) | {seconds:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", required=True, type=Path, help="folder of an encoder of ours")
    parser.add_argument("--folder", type=Path, default=Path("build/tasks"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    encoder = load_model(arguments.encoder)
    tokenizer = WordPieceTokenizer.from_directory(arguments.encoder)
    alone = EncoderModel(encoder.config, pooler=False)
    load_encoder_into(alone, encoder)
    lines = [
        f"{EPOCHS} epochs at {arguments.rate:g}, {arguments.threads} threads; accuracy in percent, "
        "mean, standard deviation and each seed; median time of one training run.",
        "",
        "| task | Trainer | time | ours | time | times as fast |",
        "|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        exported = Path(scratch) / "exported"
        export_model(exported, alone, tokenizer)
        for name in NAMES:
            data = data_of(TASKS[name], arguments.folder)
            sides: dict[str, Callable[[int], Outcome]] = {
                "trainer": partial(theirs, exported, data, arguments.rate),
                "ours": partial(ours, encoder, tokenizer, data, arguments.rate),
            }
            found: dict[str, list[Outcome]] = {side: [] for side in sides}
            for seed in range(arguments.seeds):
                for side, run in sides.items():
                    found[side].append(run(seed))
                    print(name, seed, side, found[side][-1], flush=True)
            medians = {
                side: statistics.median(each.seconds for each in outcomes)
                for side, outcomes in found.items()
            }
            lines.append(
                f"| {name} | {summary(found['trainer'])} | {summary(found['ours'])} | "
                f"{medians['trainer'] / medians['ours']:.1f} |"
            )
    report("trainer_tasks", "Fine-tuning the same weights: the Trainer and ours", lines)


if __name__ == "__main__":
    main()
