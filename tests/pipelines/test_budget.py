"""A budget of minutes: what fits it by what was measured, and an encoder named by its steps."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from pydantic import ValidationError

from bert_core.training.loop import SETTLING_BATCHES
from pipelines.artifacts import Artifact, ArtifactStore, Built, Draft
from pipelines.core.cluster.ranks import Ranks
from pipelines.core.errors import UserError
from pipelines.core.recipes.files import read_recipe
from pipelines.core.recipes.ladder import PretrainingRecipe
from pipelines.core.stage import Progress
from pipelines.stages.pretraining import PRETRAINING, step_rate, stopwatch
from pipelines.stages.pretraining.begun_budget import steps_settled
from pipelines.stages.pretraining.budget import StepRate, training_seconds, within_budget
from pipelines.stages.pretraining.cuts import cut_of
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.stage import build_encoder
from pipelines.stages.pretraining.step_rate import as_measured, measured_rate, name_of
from pipelines.training.arithmetic import Arithmetic, settle
from pipelines.training.placement import Placement
from pipelines.training.work import Work

RATE = StepRate(step=0.5, start=4.0, evaluation=2.0, first_evaluation=6.0, checkpoint=3.0)


def settings(**values) -> PretrainingSettings:
    return PretrainingSettings(
        **{"evaluate_every_steps": 50, "checkpoint_every_steps": 100, **values}
    )


def test_steps_evaluations_and_checkpoints_count():
    # 4 to start, 100 steps, 2 evaluations of which the first has more to do, a checkpoint
    assert training_seconds(settings(num_steps=100), {"train": RATE}) == 4 + 50 + 6 + 2 + 3
    # one step more brings an evaluation and a checkpoint with it
    assert training_seconds(settings(num_steps=101), {"train": RATE}) == 65 + 0.5 + 2 + 3


@pytest.mark.parametrize("minutes", [0.5, 1, 7, 60])
def test_as_many_steps_as_fit_and_not_one_more(minutes):
    found = within_budget(settings(budget_minutes=minutes), {"train": RATE})
    assert found.budget_minutes is None
    assert training_seconds(found, {"train": RATE}) <= 60 * minutes
    more = found.model_copy(update={"num_steps": found.num_steps + 1})
    assert training_seconds(more, {"train": RATE}) > 60 * minutes


def test_each_phase_has_its_own_rate():
    wanted = settings(budget_minutes=10, short_steps_fraction=0.9)
    rates = {"short": replace(RATE, step=0.1), "train": RATE}
    found = within_budget(wanted, rates)
    assert found.num_steps > 2 * within_budget(settings(budget_minutes=10), rates).num_steps
    assert 595 < training_seconds(found, rates) <= 600


def test_a_budget_for_less_than_a_training_is_refused():
    with pytest.raises(UserError, match=r"budget_minutes must be enough for 10 steps.* got 0\.1"):
        within_budget(settings(budget_minutes=0.1), {"train": RATE})


def test_steps_and_minutes_are_alternatives():
    assert PretrainingSettings(budget_minutes=1, num_steps=1000).budget_minutes == 1
    with pytest.raises(ValidationError, match=r"add --set pretraining\.num_steps=null"):
        PretrainingSettings(budget_minutes=1, num_steps=1500)


@pytest.mark.parametrize("preset", ["own-text", "demo", "original"])
def test_a_budget_takes_the_place_of_a_presets_steps(preset):
    overrides = ["pretraining.budget_minutes=5"]
    with pytest.raises(UserError, match=r"add --set pretraining\.num_steps=null"):
        read_recipe(PretrainingRecipe, preset, overrides)
    recipe = read_recipe(PretrainingRecipe, preset, [*overrides, "pretraining.num_steps=null"])
    assert recipe.pretraining.budget_minutes == 5
    assert (
        read_recipe(
            PretrainingRecipe, preset, ["pretraining.num_steps=null"]
        ).pretraining.model_dump()["num_steps"]
        == 1000
    )  # as it names an artifact


class Clock:
    """Stands in for the machine's: seconds pass only when they are told to."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize("slower_at_first", [1, 3])
@pytest.mark.parametrize("num_batches", [1, 3, 8])
@pytest.mark.parametrize("step_seconds", [0.002, 0.02, 0.06, 3.0, 30.0])
def test_a_step_is_measured_once_it_takes_what_later_ones_take(
    monkeypatch, step_seconds, num_batches, slower_at_first
):
    clock = Clock()
    monkeypatch.setattr(stopwatch, "_now", clock)
    monkeypatch.setattr(stopwatch, "this_rank", lambda: (0, 1))  # without Ray Train
    watch, told = stopwatch.Stopwatch(), as_measured(PretrainingSettings(budget_minutes=1))

    def passing(seconds):
        def passes(*_) -> dict[str, float]:
            clock.seconds += seconds
            return {}

        return passes

    batches = [(number, None) for number in range(num_batches)]
    num_settling = -(-SETTLING_BATCHES // num_batches)  # steps, until which freed blocks go back
    work = Work(
        stage="test", section="test", settings=told, num_steps=told.num_steps,
        evaluate_every_steps=told.evaluate_every_steps, build_model=lambda: None,
        micro_batches=watch.from_first(lambda step: batches), batches_of=lambda step: batches,
        evaluate=watch.evaluations(passing(0.5)), judge=passing(0), is_enough=watch.is_enough,
    )  # fmt: skip
    for step in range(work.num_steps):
        list(work.micro_batches(step))
        clock.seconds += step_seconds * (slower_at_first if step < num_settling else 1)
        if work.is_last(step + 1):
            break
    work.evaluate(None)
    clock.seconds += 0.25  # the checkpoint
    rate = watch.rate()
    assert rate.step == pytest.approx(step_seconds)
    assert (rate.evaluation, rate.checkpoint) == pytest.approx((0.5, 0.25))
    extra = num_settling * (slower_at_first - 1) * step_seconds
    assert rate.start == pytest.approx(extra, abs=1e-6)
    assert watch.ended - watch.settled >= min(20, 400 * step_seconds) - 1e-6


def test_another_processor_or_code_asks_for_another_measurement(monkeypatch):
    placement = Placement(num_workers=2, cpus=1, use_gpu=False)
    nodes = [{"CPU": 32.0}]

    def named(processor="a processor", **changed):
        arithmetic = Arithmetic(device="cpu", precision="float32", torch="2", processor=processor)
        told = PretrainingSettings(budget_minutes=1, **changed)
        return name_of(told, arithmetic, Ranks(), placement, nodes)

    assert named() == named(seed=3, learning_rate=5e-4)
    assert named() != named(size="small")
    assert named() != named(processor="another one")
    before = named()
    monkeypatch.setattr(step_rate, "PRETRAINING", replace(PRETRAINING, version=99))
    assert named() != before


def test_a_measurement_that_is_there_is_found_without_ray(
    monkeypatch, small_examples, small_vocabulary, small_context, tmp_path
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(step_rate, "connect", lambda: pytest.fail("Ray was started"))
    monkeypatch.setattr(step_rate, "_measure", lambda *_: Built([], RATE.statistics()))
    context = replace(small_context, store=ArtifactStore(tmp_path))
    told = PretrainingSettings(budget_minutes=1)
    arithmetic, context = settle(told.precision, replace(context, ranks=Ranks(device="cpu")))
    inputs = {"examples": small_examples, "vocabulary": small_vocabulary}
    for reused in (False, True):
        found = measured_rate(told, cut_of(told), arithmetic, inputs, context)
        assert found.reused == reused


@pytest.fixture
def trained(monkeypatch, small_examples, small_vocabulary, small_context):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    wanted = PretrainingSettings(budget_minutes=10)
    inputs = {"examples": small_examples, "vocabulary": small_vocabulary}

    def trained(
        store: ArtifactStore, rate: StepRate, num_cpus: int, build: Callable[[Draft], Built]
    ) -> Artifact:
        """An encoder from `build`, on a machine where a step takes so long."""
        monkeypatch.setattr(step_rate, "_measure", lambda *_: Built([], rate.statistics()))
        monkeypatch.setattr(step_rate, "local_cpus", lambda: num_cpus)
        context = replace(small_context, store=store, ranks=Ranks(device="cpu"))
        arithmetic, here = settle(wanted.precision, context)
        arithmetic = replace(arithmetic, processor=f"one of {num_cpus} cores")
        with steps_settled(wanted, arithmetic, inputs, here) as counted:
            return here.store.get_or_build(
                PRETRAINING.kind,
                version=PRETRAINING.version,
                settings=arithmetic.named_in(counted.model_dump(mode="json")),
                inputs=inputs,
                build=build,
            )

    return trained


def test_an_interrupted_training_keeps_its_steps_where_the_cluster_has_changed_since(
    trained, tmp_path
):
    store = ArtifactStore(tmp_path)
    drafts: list[str] = []

    def interrupted(draft: Draft) -> Built:
        drafts.append(draft.fingerprint)
        raise KeyboardInterrupt

    slow, fast = RATE, replace(RATE, step=0.1)
    with pytest.raises(KeyboardInterrupt):
        trained(store, slow, 2, interrupted)
    made = trained(store, fast, 16, lambda draft: Built([], {}))
    assert drafts == [made.fingerprint]  # the checkpoints are its own
    # Once it is done, the budget is what it comes to where it is asked for.
    other = trained(store, fast, 16, lambda draft: Built([], {}))
    assert other.manifest.settings["num_steps"] > 2 * made.manifest.settings["num_steps"]
    assert trained(store, slow, 2, lambda draft: pytest.fail("it is there")).reused
    assert list((tmp_path / ".budgets").iterdir()) == []


def test_machines_that_train_for_one_budget_at_once_have_their_own_steps(trained, tmp_path):
    store = ArtifactStore(f"memory://{tmp_path.name}/store")
    slow, fast = RATE, replace(RATE, step=0.1)
    drafts: list[str] = []

    def interrupted(draft: Draft) -> Built:
        drafts.append(draft.fingerprint)
        # The work of the first one is there while the second asks, and its trainer lives.
        if len(drafts) == 1:
            with pytest.raises(KeyboardInterrupt):
                trained(store, slow, 2, interrupted)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(store, fast, 16, interrupted)
    of_fast, of_slow = drafts
    assert of_fast != of_slow
    # Both were interrupted, and each machine goes on with its own.
    assert trained(store, fast, 16, lambda draft: Built([], {})).fingerprint == of_fast
    assert trained(store, slow, 2, lambda draft: Built([], {})).fingerprint == of_slow


@pytest.mark.slow
def test_a_budget_is_measured_once_and_ends_as_the_encoder_of_its_steps(
    small_examples, small_vocabulary, local_ray, tmp_path, small_context
):
    notes: list[str] = []

    def observe(progress: Progress) -> None:
        if progress.note:
            notes.append(progress.note)

    context = replace(
        small_context, store=ArtifactStore(tmp_path), observe=observe, ranks=Ranks(workers=2)
    )
    wanted = PretrainingSettings(
        size="tiny", budget_minutes=0.25, examples_per_step=16, micro_batch_examples=8,
        evaluate_every_steps=100, checkpoint_every_steps=500, evaluation_examples=64,
        final_evaluation_examples=64,
    )  # fmt: skip
    encoder = build_encoder(wanted, small_examples, small_vocabulary, context)
    num_steps = encoder.statistics["num_steps"]
    assert encoder.manifest.settings["num_steps"] == num_steps >= 10
    assert encoder.manifest.settings["budget_minutes"] is None
    assert any(f"0.25 minutes are {num_steps:,} steps" in note for note in notes)
    # Timings are no facts here; what the measurement says and what came of it are.
    arithmetic, context = settle(wanted.precision, context)
    inputs = {"examples": small_examples, "vocabulary": small_vocabulary}
    alone = wanted.model_copy(update={"mask_fraction": 0.15})  # what the examples say
    rate = measured_rate(alone, cut_of(wanted), arithmetic, inputs, context)
    assert rate.reused
    assert rate.kind == "step_rate"
    assert all(value >= 0 for value in rate.statistics.values())
    assert rate.statistics["step_seconds"] > 0
    assert (
        training_seconds(
            wanted.model_copy(update={"num_steps": num_steps}),
            {"train": StepRate.of(rate.statistics)},
        )
        <= 15
    )
    again = build_encoder(wanted, small_examples, small_vocabulary, context)
    assert again.reused and again.fingerprint == encoder.fingerprint
    plain = wanted.model_copy(update={"num_steps": num_steps, "budget_minutes": None})
    assert build_encoder(plain, small_examples, small_vocabulary, context).reused
    # A setting that changes no speed asks for no other measurement.
    other = alone.model_copy(update={"learning_rate": 5e-4, "seed": 3})
    assert measured_rate(other, cut_of(other), arithmetic, inputs, context).reused
