"""Stage: from a pretrained encoder and labelled items to a model of their task."""

import itertools
import json
import math
import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, stdev
from typing import Any, Final, Literal, NamedTuple

from bert_core.model.task_models import TaskModel, TextModel
from bert_core.training.state import read_config
from bert_core.vocabulary import Normalization, WordPieceTokenizer, build_normalizer
from pipelines.cluster import connect, map_tasks, nodes
from pipelines.errors import DivergedError, UserError
from pipelines.stage import IMPORTED, Observer, Progress, StageContext, ignore, send_note
from pipelines.stages import FINETUNING
from pipelines.stages.dataset.stage import family_of, read_items
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.finetuning.training import (
    OF_NO_TRAINING,
    Initialization,
    files_of,
    train_task_model,
)
from pipelines.store import Artifact, Built, Draft
from pipelines.tracking.tracker import is_transient
from pipelines.train.imported import config_of
from pipelines.train.metrics import finish_run, numbers, open_run
from pipelines.train.placement import resolve_device
from pipelines.train.settings import resolved_rate

# Few labels want many passes, many labels few (docs/decisions/0041).
_LEAST_EPOCHS, _MOST_EPOCHS = 3, 20
_ITEMS_OF_ONE_EPOCH: Final = 200_000
# Of fewer items every one is needed to learn from (docs/decisions/0069).
_FEWEST_ITEMS, _TO_CALIBRATE_BY, _MOST_TO_STOP_BY = 1000, 100, 1000


def build_task_model(
    settings: FinetuningSettings,
    dataset: Artifact,
    encoder: Artifact,
    context: StageContext,
    *,
    initialization: Initialization = "pretrained",
) -> Artifact:
    """A model of the task's family from `encoder`, or from random weights of its shape.

    The best of several where the settings ask for more than one seed, or for values to be tried.
    Statistics: the family's held-out figures, those of the trivial baseline beside them.
    """
    observe = context.observe if initialization == "pretrained" else ignore
    settings = resolved_settings(settings, dataset, encoder, observe)
    build = train_task_model if settings.is_one_training else best_of_trials
    return build(settings, dataset, encoder, context, initialization=initialization)


def resolved_settings(
    settings: FinetuningSettings, dataset: Artifact, encoder: Artifact, observe: Observer
) -> FinetuningSettings:
    """The settings with a value in place of each `auto`, with notes to `observe`."""
    epochs = settings.num_epochs
    if epochs == "auto":
        num_items = dataset.statistics["items"]["train"]
        epochs = automatic_epochs(num_items)
        note = f"finetuning: num_epochs=auto is {epochs:g} for {num_items:,} training items"
        send_note(observe, "finetuning", note)
    rules = WordPieceTokenizer.from_directory(encoder.local_folder()).normalization
    num_changed, num_words = _words_without_marks(dataset, rules)
    if num_changed:
        note = (
            f"finetuning: the encoder's tokenizer removes accents and other marks, here from "
            f"{num_changed:,} of {num_words:,} different words; if they matter, take an encoder "
            "that keeps them (a cased or multilingual one)"
        )
        send_note(observe, "finetuning", note)
    rate = resolved_rate(settings.learning_rate, "finetuning", config_of(encoder), observe)
    return settings.model_copy(
        update={
            "validation_items": _num_validated(settings, dataset),
            "num_epochs": float(epochs),
            "learning_rate": rate,
            "pooling": _pooling(settings, dataset, encoder),
            "search": settings.search.around(rate, epochs),
        }
    )


def _words_without_marks(dataset: Artifact, rules: Normalization) -> tuple[int, int]:
    """How many different words of the training items lose a mark by `rules`, and of how many."""
    if not rules.strips_accents:
        return 0, 0
    cells = [cell for row in read_items(dataset, "train").rows for cell in row.values()]
    texts = itertools.chain.from_iterable(
        [cell] if isinstance(cell, str) else cell for cell in cells if isinstance(cell, str | list)
    )
    words = {word for text in texts if isinstance(text, str) for word in text.split()}
    whole = build_normalizer(replace(rules, strip_accents=False, compose=True))
    stripped = build_normalizer(rules)
    # Taken apart, Hangul loses nothing: so it is compared put together.
    changed = sum(
        whole.normalize_str(word) != unicodedata.normalize("NFC", stripped.normalize_str(word))
        for word in words
    )
    return changed, len(words)


def automatic_epochs(num_items: int) -> int:
    """The passes over `num_items`: three over very many, twenty over a few hundred."""
    epochs = round(math.sqrt(_ITEMS_OF_ONE_EPOCH / max(1, num_items)))
    return min(max(epochs, _LEAST_EPOCHS), _MOST_EPOCHS)


def _num_validated(settings: FinetuningSettings, dataset: Artifact) -> int:
    """The training items that are not learned from: see `FinetuningSettings.validation_items`."""
    num_items = dataset.statistics["items"]["train"]
    if settings.validation_items != "auto":
        return settings.validation_items
    if settings.patience is not None:
        return min(max(1, num_items // 10), _MOST_TO_STOP_BY)
    model = family_of(dataset).model
    # Means over windows are not calibrated: no temperature of the logits fits them.
    is_calibrated = (
        issubclass(model, TaskModel)
        and model.has_probabilities
        and settings.long_texts != "windows"
    )
    return _TO_CALIBRATE_BY if num_items >= _FEWEST_ITEMS and is_calibrated else 0


def _pooling(
    settings: FinetuningSettings, dataset: Artifact, encoder: Artifact
) -> Literal["pooler", "mean"]:
    is_causal = config_of(encoder).causal
    if settings.pooling == "pooler" and is_causal:
        raise UserError(
            "finetuning.pooling=pooler reads the first token, which sees only itself in a causal "
            "encoder; leave it out or set it to mean"
        )
    if settings.pooling != "auto":
        return settings.pooling
    if not issubclass(family_of(dataset).model, TextModel):
        return "pooler"
    if is_causal:
        return "mean"
    embedding = read_config(encoder.local_folder()).get("embedding") or {}
    # A published encoder is fine-tuned as its paper does, and opens in transformers as it did.
    is_published = encoder.kind == IMPORTED and not encoder.statistics.get("is_ours")
    return "pooler" if is_published and embedding.get("pooling") != "mean" else "mean"


TRIALS_FILE: Final = "trials.json"


class Trial(NamedTuple):
    """What one training run changes of the recipe."""

    changes: Mapping[str, Any]
    seed: int

    def of(self, settings: FinetuningSettings) -> FinetuningSettings:
        """The settings of this training run alone."""
        alone = {**self.changes, "seed": self.seed, "num_seeds": 1, "search": {}}
        return FinetuningSettings.model_validate({**settings.model_dump(), **alone})


# A trial that diverged is none of the best, and no reason to end the others.
Outcome = Artifact | DivergedError


def best_of_trials(
    settings: FinetuningSettings,
    dataset: Artifact,
    encoder: Artifact,
    context: StageContext,
    *,
    initialization: Initialization = "pretrained",
) -> Artifact:
    """The model with the best held-out score of all that the settings ask for.

    Every combination of the values to try is trained with the first seed, and the best of them
    with the other seeds; from random weights, to compare, with the values that were best for the
    encoder. Each training run is an artifact of its own; several run at once, and interrupted ones
    resume. Statistics: the best model's, and `mean/` and `deviation/` of the figures of all seeds
    with the values that were taken. `trials.json` holds all training runs.
    """
    changes: list[dict[str, Any]] = settings.search.points()
    if initialization == "random" and len(changes) > 1:
        chosen = best_of_trials(settings, dataset, encoder, context)
        changes = [chosen.statistics["chosen"]]
    arithmetic, settled = resolve_device(settings.precision, context)
    plain = settings.model_dump(mode="json", exclude=OF_NO_TRAINING)
    tried = {"tried": changes, "num_seeds": settings.num_seeds, "initialization": initialization}
    artifact = context.store.get_or_build(
        FINETUNING.kind,
        version=FINETUNING.version,
        settings=arithmetic.named_in(plain | tried),
        inputs={"dataset": dataset, "encoder": encoder},
        build=partial(_try, settings, changes, dataset, encoder, initialization, settled),
    )
    finish_run(artifact, context)
    return artifact


def _try(
    settings: FinetuningSettings,
    changes: Sequence[Mapping[str, Any]],
    dataset: Artifact,
    encoder: Artifact,
    initialization: Initialization,
    context: StageContext,
    draft: Draft,
) -> Built:
    score: str = dataset.statistics["score"]
    alone = replace(context, observe=ignore)  # who watches here does not travel
    train = partial(_trained, settings, dataset, encoder, initialization, alone)
    stage = f"{FINETUNING.name} trials from {initialization} weights"
    run = f"{FINETUNING.name}-trials-{initialization}"
    first, *others = range(settings.seed, settings.seed + settings.num_seeds)
    with open_run(run, settings.model_dump(mode="json"), draft, context):
        trials = [Trial(change, first) for change in changes]
        if len(changes) == 1:  # nothing to wait for: all seeds at once
            trials += [Trial(changes[0], seed) for seed in others]
        outcomes = _at_once(train, trials, stage, score, context)
        if len(changes) > 1:
            _note_diverged(trials, outcomes, context)
            best = _best(outcomes, score)
            repeated = [Trial(trials[best].changes, seed) for seed in others]
            again = _at_once(train, repeated, stage, score, context)
            seeds = _models([outcomes[best], *again])
            trials, outcomes = [*trials, *repeated], [*outcomes, *again]
        else:
            seeds = _models(outcomes)
    model = seeds[_best(seeds, score)]
    for name in files_of(dataset):
        with draft.file(name) as target:
            shutil.copyfile(model.local(name), target.path)
    records = [_record(*each) for each in zip(trials, outcomes, strict=True)]
    draft.write(TRIALS_FILE, json.dumps(records, indent=2).encode())
    statistics = {
        **model.statistics,
        "chosen": dict(trials[outcomes.index(model)].changes),
        "trained": model.fingerprint,
        "num_trials": len(trials),
        "num_seeds": len(seeds),
        **_over_seeds(seeds),
    }
    return Built((*files_of(dataset), TRIALS_FILE), statistics)


def _note_diverged(
    trials: Sequence[Trial], outcomes: Sequence[Outcome], context: StageContext
) -> None:
    """Say which trials of a search diverged; raise UserError where all did."""
    errors = [
        (trial, outcome)
        for trial, outcome in zip(trials, outcomes, strict=True)
        if isinstance(outcome, DivergedError)
    ]
    for trial, error in errors:
        values = ", ".join(f"{name}={value:g}" for name, value in trial.changes.items())
        if len(errors) == len(trials):
            raise UserError(f"all {len(trials)} trials diverged, the one of {values}: {error}")
        send_note(context.observe, "finetuning", f"the trial of {values} diverged: {error}")


def _models(outcomes: Sequence[Outcome]) -> list[Artifact]:
    """The models; raises the first error, since a mean over the other seeds would hide it."""
    models = []
    for outcome in outcomes:
        if isinstance(outcome, DivergedError):
            raise outcome
        models.append(outcome)
    return models


def _record(trial: Trial, outcome: Outcome) -> dict[str, Any]:
    """A trial in `trials.json`."""
    record = {"changes": dict(trial.changes), "seed": trial.seed}
    if isinstance(outcome, DivergedError):
        return {**record, "error": str(outcome)}
    return {
        **record,
        "fingerprint": outcome.fingerprint,
        "figures": numbers(outcome.statistics),
    }


def _at_once(
    train: partial[Outcome], trials: Sequence[Trial], stage: str, score: str, context: StageContext
) -> list[Outcome]:
    """The trials' models, as many trained at once as there are GPUs, or CPUs; in their order."""
    if not trials:
        return []
    connect()
    resource = "GPU" if context.runtime.device == "gpu" else "CPU"
    places = max(1, int(sum(node.get(resource, 0) for node in nodes())))
    scores: list[float] = []

    def report(index: int, outcome: Outcome) -> None:
        scores.append(_score_of(outcome, score))
        figures = {score: scores[-1], "best": max(scores)}
        context.observe(
            Progress(
                stage=stage,
                done=len(scores),
                total=len(trials),
                unit="trials",
                figures={name: value for name, value in figures.items() if math.isfinite(value)},
            )
        )

    at_once = min(places, len(trials))
    return map_tasks(train, trials, num_workers=at_once, cpus_each=0, on_result=report)


def _trained(
    settings: FinetuningSettings,
    dataset: Artifact,
    encoder: Artifact,
    initialization: Initialization,
    context: StageContext,
    trial: Trial,
) -> Outcome:
    """One trial, on one CPU or GPU; runs as a Ray task, which only waits for its worker."""
    alone = {"training_workers": 1, "cpus_per_worker": 1}
    context = replace(context, runtime=context.runtime.model_copy(update=alone))
    try:
        return train_task_model(
            trial.of(settings), dataset, encoder, context, initialization=initialization
        )
    except DivergedError as error:
        return error
    except UserError as error:
        error.is_transient = is_transient(error)  # its cause stays behind in the task
        raise


def _best(outcomes: Sequence[Outcome], score: str) -> int:
    """The first of equal ones."""
    return max(range(len(outcomes)), key=lambda index: _score_of(outcomes[index], score))


def _score_of(outcome: Outcome, score: str) -> float:
    """That of a model; of a diverged trial less than any."""
    return -math.inf if isinstance(outcome, DivergedError) else float(outcome.statistics[score])


def _over_seeds(models: Sequence[Artifact]) -> dict[str, float]:
    """Mean and, of several, standard deviation of the held-out figures and the training time."""
    figures: dict[str, float] = {}
    for name in numbers(models[0].statistics):
        if name.startswith("eval/") or name == "training_seconds":
            values = [float(model.statistics[name]) for model in models]
            figures[f"mean/{name}"] = fmean(values)
            if len(values) > 1:
                figures[f"deviation/{name}"] = stdev(values)
    return figures
