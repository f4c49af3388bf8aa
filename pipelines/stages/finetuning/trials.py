"""Several training runs of a task: values searched, seeds repeated, and the best published."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, stdev
from typing import Any, NamedTuple

from pipelines.cluster import connect, map_tasks, nodes
from pipelines.errors import UserError
from pipelines.stage import Progress, StageContext, ignore
from pipelines.stages.finetuning import FINETUNING
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.finetuning.training import (
    OF_NO_TRAINING,
    STAGE,
    Initialization,
    files_of,
    train_task_model,
)
from pipelines.store import Artifact, Built, Draft
from pipelines.tracking.tracker import is_transient
from pipelines.train.arithmetic import resolve
from pipelines.train.runs import finish_run, numbers, open_run, training_input

TRIALS_FILE = "trials.json"

_TIMES = ("training_seconds", "tokens_per_second")


class Trial(NamedTuple):
    """What one training run changes of the recipe."""

    changes: Mapping[str, Any]
    seed: int

    def of(self, settings: FinetuningSettings) -> FinetuningSettings:
        """The settings of this training run alone."""
        alone = {**self.changes, "seed": self.seed, "num_seeds": 1, "search": {}}
        return FinetuningSettings.model_validate({**settings.model_dump(), **alone})


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
    arithmetic, settled = resolve(settings.precision, context)
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
    data = training_input(dataset, dataset.statistics["items"]["train"])
    score: str = dataset.statistics["score"]
    alone = replace(context, observe=ignore)  # who watches here does not travel
    train = partial(_trained, settings, dataset, encoder, initialization, alone)
    stage = f"{STAGE} trials from {initialization} weights"
    run = f"{STAGE}-trials-{initialization}"
    first, *others = range(settings.seed, settings.seed + settings.num_seeds)
    trials = [Trial(change, first) for change in changes]
    chosen = changes[0]
    with open_run(run, settings.model_dump(mode="json"), draft, context, [data]):
        if len(changes) > 1:
            models = _at_once(train, trials, stage, score, context)
            place = _best(models, score)
            chosen = changes[place]
            repeated = [Trial(chosen, seed) for seed in others]
            seeds = [models[place], *_at_once(train, repeated, stage, score, context)]
            trials, models = [*trials, *repeated], [*models, *seeds[1:]]
        else:  # nothing to wait for: all seeds at once
            trials += [Trial(chosen, seed) for seed in others]
            models = seeds = _at_once(train, trials, stage, score, context)
    best = seeds[_best(seeds, score)]
    for name in files_of(dataset):
        with draft.file(name) as target:
            shutil.copyfile(best.local(name), target.path)
    records = json.dumps([_record(*each) for each in zip(trials, models, strict=True)], indent=2)
    draft.write(TRIALS_FILE, records.encode())
    statistics = {
        **best.statistics,
        "chosen": dict(chosen),
        "trained": best.fingerprint,
        "num_trials": len(trials),
        "num_seeds": len(seeds),
        **_over_seeds(seeds),
    }
    return Built((*files_of(dataset), TRIALS_FILE), statistics)


def _at_once(
    train: partial[Artifact],
    trials: Sequence[Trial],
    stage: str,
    score: str,
    context: StageContext,
) -> list[Artifact]:
    """The trials' models, as many trained at once as there are GPUs, or CPUs; in their order."""
    connect()
    resource = "GPU" if context.runtime.device == "gpu" else "CPU"
    places = max(1, int(sum(node.get(resource, 0) for node in nodes())))
    done: list[float] = []

    def report(index: int, model: Artifact) -> None:
        done.append(model.statistics[score])
        context.observe(
            Progress(
                stage=stage,
                done=len(done),
                total=len(trials),
                unit="trials",
                figures={score: done[-1], "best": max(done)},
            )
        )

    at_once = min(places, len(trials))
    return (
        map_tasks(train, trials, num_workers=at_once, cpus_each=0, on_result=report)
        if trials
        else []
    )


def _trained(
    settings: FinetuningSettings,
    dataset: Artifact,
    encoder: Artifact,
    initialization: Initialization,
    context: StageContext,
    trial: Trial,
) -> Artifact:
    """One trial, on one CPU or GPU; runs as a Ray task, which only waits for its worker."""
    alone = {"training_workers": 1, "cpus_per_worker": 1}
    context = replace(context, runtime=context.runtime.model_copy(update=alone))
    try:
        return train_task_model(
            trial.of(settings), dataset, encoder, context,
            initialization=initialization,
        )  # fmt: skip
    except UserError as error:
        error.is_transient = is_transient(error)
        raise


def _best(models: Sequence[Artifact], score: str) -> int:
    """The first of equal ones."""
    return max(range(len(models)), key=lambda index: models[index].statistics[score])


def _record(trial: Trial, model: Artifact) -> dict[str, Any]:
    return {
        "changes": dict(trial.changes),
        "seed": trial.seed,
        "fingerprint": model.fingerprint,
        "figures": numbers(model.statistics),
    }


def _over_seeds(models: Sequence[Artifact]) -> dict[str, float]:
    """Mean and, of several, standard deviation of the held-out figures and of the times."""
    names = [n for n in numbers(models[0].statistics) if n.startswith("eval/") or n in _TIMES]
    figures: dict[str, float] = {}
    for name in names:
        values = [float(model.statistics[name]) for model in models]
        figures[f"mean/{name}"] = fmean(values)
        if len(values) > 1:
            figures[f"deviation/{name}"] = stdev(values)
    return figures
