"""Classifiers that learned a small task a little or well, registered with what they stand on."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from bert_core.config import EncoderConfig
from bert_core.model.catalogue import SequenceClassifier
from flows.promote import compare_and_promote
from pipelines.recipes.recipe import RegistrationSettings
from pipelines.registry.compare import Comparison
from pipelines.registry.promote import PREVIOUS, decide_promotion, move_alias
from pipelines.registry.prove import verify
from pipelines.registry.register import RegisteredModel, Submission, register
from pipelines.stages.dataset.settings import DatasetSettings, LabelledFile
from pipelines.stages.dataset.stage import build_dataset, family_of, figures_of, read_items
from pipelines.stages.vocabulary.stage import load_tokenizer
from pipelines.store import Artifact, Built, Draft
from pipelines.tasks import Reading
from pipelines.train.metrics import numbers
from pipelines.versions import computing_machine
from tests.pipelines.registry.conftest import Models, write_model
from tests.pipelines.tasks.letters import learn

NAMES = RegistrationSettings()
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def labelled_texts(
    models: Models, folder: Path, *, labels: Sequence[str] = ("no", "yes"), seed: int = 0,
    size: int = 900, split: int = 0,
) -> Artifact:  # fmt: skip
    """Texts of letters, whose label says whether the first is one of nine; two thirds say no.

    Which letters there are says next to nothing of it, so that no bag of words learns it.
    """
    random, rows = np.random.default_rng(seed), []
    for number in range(size):
        is_one = number % 3 == 0
        first = random.choice(list(LETTERS[:9] if is_one else LETTERS[9:]))
        others = random.choice(list(LETTERS), 5)
        rows.append((" ".join([first, *others]), labels[is_one]))
    path = folder / f"labelled-{'-'.join(labels)}-{seed}-{size}.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    source = LabelledFile(path=str(path), heldout_fraction=0.3, seed=split)
    return build_dataset(DatasetSettings(source=source), None, models.context)


def finetuned(models: Models, dataset: Artifact, steps: int) -> Artifact:
    """A model that learned for so many steps; with none it always says the majority class."""

    def build(draft: Draft) -> Built:
        family, tokenizer = family_of(dataset), load_tokenizer(models.vocabulary)
        items, heldout = (read_items(dataset, split) for split in ("train", "heldout"))
        torch.manual_seed(0)
        config = EncoderConfig(
            vocab_size=models.vocabulary.statistics["size"], hidden_size=32, num_layers=1,
            num_attention_heads=2, intermediate_size=64, max_position_embeddings=32,
            hidden_dropout=0.0, attention_dropout=0.0,
        )  # fmt: skip
        model = family.build_model(config, items.labels)
        reading = Reading(32)
        examples = family.examples(items, tokenizer, reading)
        if steps:
            learn(model, examples, steps, rate=3e-3, warmup=5)
        else:
            assert isinstance(model, SequenceClassifier)
            majority = items.labels.index(dataset.statistics["majority_label"])
            with torch.no_grad():
                for parameter in model.task_head.parameters():
                    parameter.zero_()
                model.task_head.dense.bias[majority] = 1.0
        model.eval()
        answers = family.answers(model, tokenizer, heldout, reading)
        files = write_model(draft, model, tokenizer)
        statistics = {**figures_of(answers, dataset), "score": family.score, "temperature": 1.0}
        return Built(files, statistics)

    return models.context.store.get_or_build(
        "finetuned", version=1, settings={"steps": steps}, inputs={"dataset": dataset}, build=build
    )


def proved(
    models: Models, artifact: Artifact, dataset: Artifact, name: str = "classifier"
) -> RegisteredModel:
    """The artifact as a version that repeated its figure."""
    if models.tracker.find_run(artifact.fingerprint) is None:
        run_id = models.tracker.create_run("finetuning", artifact.fingerprint, {}, {})
        models.tracker.finish(run_id, numbers(artifact.statistics), computed_on=computing_machine())
    submission = Submission(
        kind="classification", name=name, alias="candidate", artifact=artifact,
        lineage={"dataset": dataset, "finetuned": artifact}, recipe_yaml="name: small\n",
    )  # fmt: skip
    model = register(submission, models.tracker)
    if not model.is_verified:
        verify(model, dataset, models.context.store.url, models.tracker)
    return model


def compared(models: Models, model: RegisteredModel) -> Comparison:
    """What a run of its recipe finds, and does."""
    run = run_of(models)
    compare_and_promote(run, model, None)
    (comparison,) = run.report.comparisons
    return comparison


def run_of(models: Models, before: Callable[[str], object] = lambda title: None) -> Any:
    """A run that calls its stages without Prefect; `before` each it is told the stage's title."""

    def stage(title: str, function: Callable[..., object], *inputs: object) -> object:
        before(title)
        return function(*inputs)

    return SimpleNamespace(
        recipe=SimpleNamespace(registration=NAMES), tracker=models.tracker, context=models.context,
        report=SimpleNamespace(comparisons=[], promotions=[]), stage=stage,
    )  # fmt: skip


def choose(models: Models, name: str, source: str, reason: str = "") -> int:
    """What a person does with `bertsmith promote`: the version that has the alias."""
    return move_alias(
        models.tracker, decide_promotion(models.tracker, name, source, "champion", reason)
    ).version


def go_back(models: Models, name: str) -> int:
    """What a person does with `bertsmith rollback`: the version that has the alias again."""
    return choose(models, name, PREVIOUS)
