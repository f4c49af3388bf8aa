"""Several training runs of a task: values tried, seeds repeated, the best published."""

import json
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import psutil
import pytest

from pipelines.cluster import map_tasks
from pipelines.errors import UserError
from pipelines.stage import Progress, StageContext
from pipelines.stages import FINETUNING
from pipelines.stages.dataset.settings import DatasetSettings, LabelledFile
from pipelines.stages.dataset.stage import build_dataset
from pipelines.stages.finetuning.settings import FinetuningSettings, SearchSettings
from pipelines.stages.finetuning.stage import Trial, _trained, build_task_model
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.stage import build_encoder
from pipelines.store import Artifact, ArtifactStore
from pipelines.tracking.tracker import Tracker, is_transient
from tests.pipelines.small_data import SYLLABLES, invented_text

SETTINGS = FinetuningSettings(
    num_epochs=2, learning_rate=1e-3, global_batch_size=16, micro_batch_size=8, max_tokens=32
)
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def encoder(small_examples, small_vocabulary, small_context, local_ray) -> Artifact:
    settings = PretrainingSettings(
        size="tiny", num_steps=1, global_batch_size=4, micro_batch_size=4
    )
    return build_encoder(settings, small_examples, small_vocabulary, small_context)


@pytest.fixture(scope="module")
def dataset(small_context, tmp_path_factory) -> Artifact:
    """Whether a syllable stands in a text: easily learned; every tenth label is wrong."""
    random, lines = np.random.default_rng(0), []
    for number in range(240):
        text = invented_text(1000 + number, 1)
        is_there = (SYLLABLES[0] * 3 in text.lower()) != (random.random() < 0.1)
        lines.append(json.dumps({"text": text, "label": "yes" if is_there else "no"}))
    path = tmp_path_factory.mktemp("labels") / "labels.jsonl"
    path.write_text("\n".join(lines))
    settings = DatasetSettings(source=LabelledFile(path=str(path), heldout_fraction=0.3))
    return build_dataset(settings, None, small_context)


def test_auto_is_the_grid_of_the_paper_around_the_recipe() -> None:
    search = SearchSettings(learning_rate="auto", num_epochs="auto", embeddings_rate=(1.0,))
    of_paper = search.around(learning_rate=5e-5, num_epochs=3)
    assert of_paper.learning_rate == (5e-5, 3e-5, 2e-5)
    assert of_paper.num_epochs == (2, 3, 4)
    of_small_encoder = search.around(learning_rate=1e-3, num_epochs=20)
    assert of_small_encoder.learning_rate == (1e-3, 6e-4, 4e-4)
    assert of_small_encoder.num_epochs == (13.3, 20, 26.7)
    assert len(of_small_encoder.points()) == 9


@pytest.mark.slow
def test_values_are_searched_seeds_repeated_and_the_best_is_published(
    encoder: Artifact, dataset: Artifact, tmp_path: Path
) -> None:
    told: list[Progress] = []
    context = StageContext(store=ArtifactStore(tmp_path), observe=told.append)
    search = SearchSettings(learning_rate=(1e-3, 1e-6))
    settings = SETTINGS.model_copy(update={"search": search, "num_seeds": 2})
    best = build_task_model(settings, dataset, encoder, context)
    trials = json.loads(best.local("trials.json").read_text())
    assert [(each["changes"], each["seed"]) for each in trials[:2]] == [
        ({"learning_rate": 1e-3}, 0),
        ({"learning_rate": 1e-6}, 0),
    ]
    scores = [each["figures"]["eval/accuracy"] for each in trials]
    chosen = trials[int(np.argmax(scores[:2]))]["changes"]
    assert best.statistics["chosen"] == trials[2]["changes"] == chosen
    assert trials[2]["seed"] == 1
    seeds = [scores[int(np.argmax(scores[:2]))], scores[2]]
    statistics = best.statistics
    assert statistics["eval/accuracy"] == max(seeds)
    assert statistics["mean/eval/accuracy"] == pytest.approx(fmean(seeds))
    assert statistics["deviation/eval/accuracy"] == pytest.approx(stdev(seeds))
    assert (statistics["num_trials"], statistics["num_seeds"]) == (3, 2)
    assert "of 2 seeds" in FINETUNING.headline(statistics)
    assert [(each.done, each.total) for each in told if each.unit == "trials"] == [
        (1, 2), (2, 2), (1, 1)
    ]  # fmt: skip

    # A trial is the artifact that a training run of its own would make, to the byte.
    alone = SETTINGS.model_copy(update={**chosen, "seed": trials[2]["seed"]})
    again = build_task_model(alone, dataset, encoder, context)
    assert again.reused
    assert again.fingerprint == trials[2]["fingerprint"]
    published = context.store.find("finetuned", statistics["trained"])
    assert published is not None
    assert published.manifest.files[WEIGHTS] == best.manifest.files[WEIGHTS]
    assert build_task_model(settings, dataset, encoder, context).reused

    # From random weights: the chosen values with all seeds, and no search.
    told.clear()
    random = build_task_model(settings, dataset, encoder, context, initialization="random")
    # Both at once: there is no search to wait for.
    assert [(each.done, each.total) for each in told if each.unit == "trials"] == [(1, 2), (2, 2)]
    its = json.loads(random.local("trials.json").read_text())
    assert [(each["changes"], each["seed"]) for each in its] == [(chosen, 0), (chosen, 1)]


def test_a_tracker_that_is_away_from_one_trial_is_worth_another_try(
    encoder: Artifact, dataset: Artifact, tmp_path: Path
) -> None:
    tracker = Tracker(uri="http://127.0.0.1:9", experiment="tests")
    context = StageContext(store=ArtifactStore(tmp_path), tracker=tracker)
    train = partial(_trained, SETTINGS, dataset, encoder, "pretrained", context)
    with pytest.raises(UserError, match=r"tracker at http://127\.0\.0\.1:9 failed") as told:
        map_tasks(train, [Trial({}, 0)], num_workers=1, cpus_each=0)
    assert is_transient(told.value)


@pytest.mark.slow
def test_a_trial_that_cannot_work_ends_all_in_one_sentence(
    encoder: Artifact, dataset: Artifact, tmp_path: Path
) -> None:
    context = StageContext(store=ArtifactStore(tmp_path))
    search = SearchSettings(embeddings_rate=(1.0, 2.0))
    settings = SETTINGS.model_copy(update={"search": search, "freeze_layers": 99})
    with pytest.raises(UserError, match="freeze_layers=99 is more than the 2 layers"):
        build_task_model(settings, dataset, encoder, context)


@pytest.mark.slow
def test_a_search_goes_on_without_the_values_that_diverge(
    encoder: Artifact, dataset: Artifact, tmp_path: Path
) -> None:
    notes: list[str] = []
    context = StageContext(
        store=ArtifactStore(tmp_path), observe=lambda progress: notes.append(progress.note)
    )
    # Once the guard knows 64 norms, the first one above their median ends a run.
    strict = {"spike_factor": 1.01, "max_skipped_steps": 1, "max_gradient_norm": 1e-3}
    search = SearchSettings(num_epochs=(12, 2))
    settings = SETTINGS.model_copy(update={"search": search, **strict})
    best = build_task_model(settings, dataset, encoder, context)
    assert best.statistics["chosen"] == {"num_epochs": 2}
    trials = json.loads(best.local("trials.json").read_text())
    assert "fingerprint" in trials[1] and "fingerprint" not in trials[0]
    assert "out of all proportion" in trials[0]["error"]
    assert any(note.startswith("the trial of num_epochs=12 diverged: ") for note in notes)
    long = SETTINGS.model_copy(update={"search": SearchSettings(num_epochs=(12, 13)), **strict})
    with pytest.raises(UserError, match="all 2 trials diverged, the one of num_epochs=12: "):
        build_task_model(long, dataset, encoder, context)


PATIENT = SETTINGS.model_copy(
    # Labels that are partly wrong, and a rate that learns them by heart: the loss rises again.
    update={
        "num_epochs": 12.0,
        "num_evaluations": 24,
        "patience": 3,
        "learning_rate": 5e-3,
        "validation_items": 60,
    }
)


@pytest.fixture(scope="module")
def stopped(encoder, dataset, tmp_path_factory) -> Artifact:
    context = StageContext(store=ArtifactStore(tmp_path_factory.mktemp("stopped")))
    return build_task_model(PATIENT, dataset, encoder, context)


def _losses(model: Artifact) -> dict[int, float]:
    history = json.loads(model.local("history.json").read_text())
    return {
        point["step"]: point["validation/loss"] for point in history if "validation/loss" in point
    }


@pytest.mark.slow
def test_patience_ends_a_training_and_the_best_weights_are_published(
    stopped: Artifact, encoder: Artifact, dataset: Artifact, tmp_path: Path
) -> None:
    losses, statistics = _losses(stopped), stopped.statistics
    best = min(losses, key=losses.__getitem__)
    assert statistics["best_step"] == best
    assert statistics["num_steps"] == max(losses)
    assert [step for step in losses if step > best] == list(losses)[-PATIENT.patience :]
    assert statistics["num_steps"] < 12 * 10  # of all its steps

    # The published weights are those of the best step, and its figures theirs.
    cut = PATIENT.model_copy(update={"patience": 1000})
    context = StageContext(store=ArtifactStore(tmp_path))
    longer = build_task_model(cut, dataset, encoder, context)
    assert longer.statistics["num_steps"] > statistics["num_steps"]
    if longer.statistics["best_step"] == best:
        assert longer.manifest.files[WEIGHTS] == stopped.manifest.files[WEIGHTS]
        assert longer.statistics["eval/accuracy"] == statistics["eval/accuracy"]


@pytest.mark.slow
def test_one_that_ended_early_and_could_not_be_published_takes_no_further_step(
    stopped: Artifact,
    encoder: Artifact,
    dataset: Artifact,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError("the store is away")

    context = StageContext(store=ArtifactStore(tmp_path))
    with monkeypatch.context() as patch, pytest.raises(OSError, match="the store is away"):
        patch.setattr("pipelines.stages.finetuning.training.publish_model", fail)
        build_task_model(PATIENT, dataset, encoder, context)
    published = build_task_model(PATIENT, dataset, encoder, context)
    assert _losses(published) == _losses(stopped)
    assert published.manifest.files[WEIGHTS] == stopped.manifest.files[WEIGHTS]


@pytest.mark.slow
def test_a_killed_training_stops_after_the_same_step_with_the_same_bits(
    stopped: Artifact, encoder: Artifact, dataset: Artifact, tmp_path: Path
) -> None:
    kill_at, killed = stopped.statistics["best_step"] + 2, []

    def kill(progress: Progress) -> None:
        if not killed and progress.unit == "steps" and progress.done >= kill_at:
            killed.append(progress.done)
            for process in psutil.Process().children(recursive=True):
                if "RayTrainWorker" in " ".join(process.cmdline()):
                    os.kill(process.pid, signal.SIGKILL)

    context = replace(StageContext(store=ArtifactStore(tmp_path)), observe=kill)
    settings = PATIENT.model_copy(update={"checkpoint_every_steps": 3})
    whole = build_task_model(settings, dataset, encoder, context)
    assert killed and whole.statistics["resumed_from"]
    assert whole.manifest.files[WEIGHTS] == stopped.manifest.files[WEIGHTS]
    assert _losses(whole) == _losses(stopped)
    assert whole.statistics["best_step"] == stopped.statistics["best_step"]
