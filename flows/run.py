"""A flow run in progress: it runs its stages as tasks and records them.

The artifact store is the only cache: Prefect's would not see a change inside a stage. A task is
retried only if a disk or a server failed: a computation would fail again, and Ray itself replaces
workers that die.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any
from uuid import UUID

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, TaskRun
from prefect.runtime import deployment, flow_run
from pydantic import Field

from flows.checks import check_run
from flows.progress import ProgressReporter, duration
from flows.report import (
    ParentRun,
    RunReport,
    StageRecord,
    flow_run_page,
    open_parent_run,
    publish_report,
)
from flows.stopping import flow_in_progress, stops_kept
from pipelines.errors import first_line, without_secrets
from pipelines.recipes.files import completed, read_recipe
from pipelines.recipes.recipe import Recipe, Until
from pipelines.stage import Stage, StageContext, open_context, open_tracker
from pipelines.store import Artifact
from pipelines.tracking.tracker import Tracker

Overrides = Annotated[
    tuple[str, ...],
    Field(
        description="Single values by dotted path, such as pretraining.num_steps=100; they take "
        "precedence."
    ),
]


@dataclass(kw_only=True)
class Run:
    """One flow run over `recipe`, and its records, which grow with every stage."""

    recipe: Recipe
    context: StageContext
    report: RunReport
    progress: ProgressReporter
    parent: ParentRun
    artifacts: dict[str, Artifact] = field(default_factory=dict)  # by the name of the stage
    started: float = field(default_factory=time.perf_counter)

    @property
    def tracker(self) -> Tracker:
        """Where the run is recorded."""
        assert self.context.tracker is not None, "a recipe's runtime settings always name a tracker"
        return self.context.tracker

    def build(self, stage: Stage, function: Callable[..., Artifact], *inputs: Any) -> Artifact:
        """The artifact of a stage of the chain, built by `function(*inputs, context)`."""
        artifact: Artifact = self.stage(stage.title, function, *inputs, self.context)
        self.artifacts[stage.name] = artifact
        return artifact

    def stage(self, title: str, function: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
        """What `function` returns, run as a task called `title`; its result and time are recorded.

        Raises what the function raises, after the report says where and how it ended.
        """
        started = time.perf_counter()
        try:
            named = network_task(function).with_options(
                task_run_name=f"{title} of {self.recipe.name}"
            )
            with stops_kept():
                result = named(*inputs, **options)
        except BaseException as error:
            self.report.failure = f"{_how_it_ended(error)} in stage {title}: {first_line(error)}"
            raise
        record = StageRecord(
            name=title,
            artifact=result if isinstance(result, Artifact) else None,
            seconds=time.perf_counter() - started,
        )
        self.report.records.append(record)
        if record.artifact is not None:
            self.parent.used(record.artifact)
        self.progress.say(f"{title:<28} {record.outcome:<7} {duration(record.seconds):>13}")
        return result

    def end(self, error: BaseException | None) -> None:
        """Complete the report, close the tracker's record, and publish both."""
        report = self.report
        if error is not None:
            report.failure = report.failure or f"{_how_it_ended(error)}: {first_line(error)}"
        report.notes.extend(self.progress.notes)
        report.seconds = time.perf_counter() - self.started
        self.parent.end(error)
        publish_report(report)


@contextmanager
def started_run(
    flow: str, recipe: Recipe, overrides: Sequence[str] = (), until: Until = "registration"
) -> Iterator[Run]:
    """A run of the flow `flow`; on leaving, its report is published.

    A run that failed or was stopped publishes what it has. Raises what happened inside, whether
    publishing succeeds or not. A deployment's run is checked here; the command checks its own.
    """
    with flow_in_progress(), ProgressReporter(flow) as progress:
        recipe = _resolved(recipe, overrides)
        if deployment.id is not None:
            check_run(recipe, until)
        report = RunReport(flow=flow, recipe=recipe, flow_run_url=flow_run_page())
        tags = {
            "bertsmith.flow_run": flow_run.id or "",
            "bertsmith.flow": flow,
            "bertsmith.recipe": recipe.name,
        }
        tracker = open_tracker(recipe.runtime, tags)
        parent = open_parent_run(tracker, f"{flow} of {recipe.name}", recipe, report.flow_run_url)
        context = open_context(
            recipe.runtime, observe=progress.observe, tags={**tags, **parent.tags}
        )
        run = Run(recipe=recipe, context=context, report=report, progress=progress, parent=parent)
        try:
            with stops_kept():
                yield run
        except BaseException as error:
            run.end(error)
            raise
        run.end(None)


def _resolved(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """The recipe to run.

    What a deployment's run does not give comes from the deployment's recipe, and then from the
    demo's, the flow's default.
    """
    if deployment.id is None:  # called as a function: the recipe is whole
        return completed(recipe, recipe.values(), overrides) if overrides else recipe
    with get_client(sync_client=True) as client:
        parameters = client.read_deployment(UUID(deployment.id)).parameters
    stated = Recipe.model_validate(parameters.get("recipe", {}))
    own = completed(stated, read_recipe("demo").values())
    return completed(recipe, own.values(), overrides)


def _how_it_ended(error: BaseException) -> str:
    """Ctrl-C and cancellations are not of the class Exception."""
    return "failed" if isinstance(error, Exception) else "stopped"


_RETRY_DELAYS_SECONDS = [2.0, 15.0, 60.0]


def _is_retryable(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether a disk or a server did not answer, so that a retry may succeed."""
    from pipelines.tracking.tracker import is_transient  # imports MLflow, which takes a second

    return is_transient(state.result(raise_on_failure=False))


def network_task(function: Callable[..., Any]) -> Task[..., Any]:
    """`function` as a task that is retried if a disk or a server failed."""
    return task(
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=len(_RETRY_DELAYS_SECONDS),
        retry_delay_seconds=_RETRY_DELAYS_SECONDS,
        retry_condition_fn=_is_retryable,
    )(stops_kept()(without_secrets(function)))
