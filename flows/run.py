"""A flow run in progress: it runs its stages as tasks and records them.

The artifact store is the only cache: Prefect's would not see a change inside a stage. Tasks that
read sources or use the tracker and the registry are retried if a disk or a server failed. A
computation is not: it would fail again, and Ray itself replaces workers that die.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, TaskRun
from prefect.runtime import deployment, flow_run
from pydantic import Field

from flows.reporting.progress import MemorySampler, ProgressReporter
from flows.reporting.progress_line import duration, memory
from flows.reporting.publishing import (
    ParentRun,
    costing_the_page_alone,
    flow_run_page,
    open_parent_run,
    publish_report,
)
from flows.reporting.run_report import RunReport, StageRecord
from flows.stopping import enter_flow, flow_in_progress
from pipelines.artifacts import Artifact
from pipelines.config.errors import first_line, redacted, without_secrets
from pipelines.recipes.connections import (
    check_nodes,
    check_store_and_tracker,
    open_context,
    open_tracker,
)
from pipelines.recipes.files import completed, differences
from pipelines.recipes.models import CorpusRecipe
from pipelines.stage import StageContext
from pipelines.tracking.tracker import Tracker
from pipelines.training.metrics import deliver_kept

Recipe = TypeVar("Recipe", bound=CorpusRecipe, covariant=True)  # a wider one will do
RecipeType = TypeVar("RecipeType", bound=CorpusRecipe)
Overrides = Annotated[
    tuple[str, ...],
    Field(
        description="Single values by dotted path, such as pretraining.num_steps=100; they take "
        "precedence."
    ),
]


@dataclass(kw_only=True)
class Run(Generic[Recipe]):
    """One flow run over `recipe`, and its records, which grow with every stage."""

    recipe: Recipe
    context: StageContext
    report: RunReport
    progress: ProgressReporter
    sampler: MemorySampler
    parent: ParentRun
    encoders: dict[str, str] = field(default_factory=dict)  # fingerprints, by name in the recipe
    started: float = field(default_factory=time.perf_counter)

    @property
    def tracker(self) -> Tracker:
        """Where the run is recorded."""
        assert self.context.tracker is not None, "a recipe's runtime settings always name a tracker"
        return self.context.tracker

    def stage(
        self, name: str, task: Task[..., Any], *inputs: Any, to_follow: int = 0, **options: Any
    ) -> Any:
        """Run a stage as a task called `name`, and record its result, time and memory.

        `to_follow` is the number of similar training runs after it, for the time left. Raises what
        the stage raises, after the report says where and how it ended.
        """
        self.progress.to_follow = to_follow
        self.sampler.start_stage()
        started = time.perf_counter()
        try:
            named = task.with_options(task_run_name=f"{name} of {self.recipe.name}")
            result = named(*inputs, **options)
        except BaseException as error:
            self.report.failure = f"{_how_it_ended(error)} in stage {name}: {first_line(error)}"
            raise
        record = StageRecord(
            name=name,
            artifact=result if isinstance(result, Artifact) else None,
            seconds=time.perf_counter() - started,
            peak_bytes=self.sampler.stage_peak_bytes(),
        )
        self.report.records.append(record)
        if record.artifact is not None:
            self.parent.used(name, record.artifact)
        self.progress.say(
            f"{name:<28} {record.outcome:<7} {duration(record.seconds):>13} "
            f"{memory(record.peak_bytes):>9}"
        )
        return result

    def end(self, error: BaseException | None) -> None:
        """Complete the report, close the tracker's record, and publish both."""
        report = self.report
        if error is not None:
            report.failure = report.failure or f"{_how_it_ended(error)}: {first_line(error)}"
        report.notes.extend(self.progress.notes)
        report.seconds = time.perf_counter() - self.started
        report.peak_bytes = self.sampler.peak_bytes
        self.parent.end(error)
        with costing_the_page_alone(self._late_note):
            publish_report(report, self.tracker)

    def _late_note(self, sentence: str) -> None:
        self.report.notes.append(sentence)
        self.progress.say(sentence)


@contextmanager
def started_run(
    flow: str, recipe: RecipeType, overrides: Sequence[str], *, default: RecipeType
) -> Iterator[Run[RecipeType]]:
    """A run of the flow `flow`; on leaving, its report is published.

    Values that a deployment's run does not give come from the deployment's recipe, and then from
    the flow's `default`. A run that failed or was stopped publishes what it has. Raises what
    happened inside, whether publishing succeeds or not. Raises UserError at once for an invalid
    recipe, an unreachable store or tracker, and a node of the cluster that cannot take part.
    """
    enter_flow()
    recipe, changed = _resolved(recipe, overrides, default)
    check_store_and_tracker(recipe.runtime)
    check_nodes(recipe.runtime)
    report = RunReport(flow=flow, recipe=recipe, flow_run_url=flow_run_page())
    tags = {
        "bertsmith.flow_run": flow_run.id or "",
        "bertsmith.flow": flow,
        "bertsmith.recipe": recipe.name,
    }
    with (
        flow_in_progress(),
        MemorySampler() as sampler,
        ProgressReporter(flow) as progress,
    ):
        for sentence in changed:
            progress.note(sentence)

        parent = open_parent_run(
            open_tracker(recipe.runtime, tags),
            f"{flow} of {recipe.name}",
            recipe,
            report.flow_run_url,
        )
        context = open_context(
            recipe.runtime, observe=progress.observe, tags={**tags, **parent.tags}
        )
        run = Run(
            recipe=recipe, context=context, report=report, progress=progress, sampler=sampler,
            parent=parent,
        )  # fmt: skip
        for sentence in deliver_kept(context.store, run.tracker):
            progress.note(sentence)
        try:
            yield run
        except BaseException as error:
            run.end(error)
            raise
        run.end(None)


def _resolved(
    recipe: RecipeType, overrides: Sequence[str], default: RecipeType
) -> tuple[RecipeType, list[str]]:
    """The recipe to run, and a sentence for each value that is not the deployment's own."""
    if deployment.id is None:  # called as a function: the recipe is whole
        if not overrides:
            return recipe, []
        return completed(recipe, recipe.values(), overrides), []
    with get_client(sync_client=True) as client:
        parameters = client.read_deployment(UUID(deployment.id)).parameters
        given = type(default).model_validate(parameters.get("recipe", {}))
        own = completed(given, default.values()).values()
        whole = completed(recipe, own, overrides)
        if whole.name != recipe.name:  # the run was named after what it was given
            name = flow_run.name.replace(recipe.name, whole.name)
            client.update_flow_run(UUID(flow_run.id), name=name)
    changed = differences(whole.values(), own)
    return whole, [
        redacted(f"{path} is {value!r}, in the deployment's own recipe it is {before!r}")
        for path, value, before in changed
    ]


def _how_it_ended(error: BaseException) -> str:
    """Ctrl-C and cancellations are not of the class Exception."""
    return "failed" if isinstance(error, Exception) else "stopped"


_RETRY_DELAYS_SECONDS = [2.0, 15.0, 60.0]


def _world_failed(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether a disk or a server did not answer, so that a retry may succeed."""
    from pipelines.tracking.transient import is_transient  # imports MLflow, which takes a second

    return is_transient(state.result(raise_on_failure=False))


def plain_task(function: Callable[..., Any]) -> Task[..., Any]:
    """`function` as a task that is run once."""
    return task(cache_policy=NO_CACHE, persist_result=False)(without_secrets(function))


def network_task(function: Callable[..., Any]) -> Task[..., Any]:
    """`function` as a task that is retried if a disk or a server failed."""
    return task(
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=len(_RETRY_DELAYS_SECONDS),
        retry_delay_seconds=_RETRY_DELAYS_SECONDS,
        retry_condition_fn=_world_failed,
    )(without_secrets(function))
