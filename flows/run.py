"""A flow run in progress: runs its stages, times them, and tells those who watch."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from prefect import Task
from prefect.runtime import flow_run

from flows.reporting.quantities import duration, memory
from flows.reporting.report import publish_report
from flows.reporting.story import StageRecord, Story
from flows.reporting.usage import MemorySampler
from flows.reporting.watch import Watch
from pipelines.artifacts import Artifact
from pipelines.core.recipes import CorpusRecipe
from pipelines.core.redaction import redacted
from pipelines.core.stage import StageContext
from pipelines.core.tracking import Tracker

Recipe = TypeVar("Recipe", bound=CorpusRecipe, covariant=True)  # a wider one will do
RecipeType = TypeVar("RecipeType", bound=CorpusRecipe)


class Run(Generic[Recipe]):
    """One flow run over `recipe`; its story grows with every stage."""

    def __init__(
        self, recipe: Recipe, context: StageContext, story: Story, watch: Watch,
        sampler: MemorySampler,
    ) -> None:  # fmt: skip
        self._recipe = recipe
        self.context = context
        self.story = story
        self._watch = watch
        self._sampler = sampler

    @property
    def recipe(self) -> Recipe:
        """What the run makes."""
        return self._recipe

    @property
    def tracker(self) -> Tracker:
        """Where the run is recorded."""
        assert self.context.tracker is not None, "a recipe's place always names a tracker"
        return self.context.tracker

    def stage(self, name: str, task: Task[..., Any], *inputs: Any, **options: Any) -> Any:
        """Run a stage as a task called `name`, and record what it made and what it took.

        Raises what the stage raises, after the story says where and how it ended.
        """
        self._sampler.start_stage()
        started = time.perf_counter()
        try:
            result = task.with_options(task_run_name=f"{name} of {self.recipe.name}")(
                *inputs, **options
            )
        except BaseException as error:
            self.story.failure = f"{_how_it_ended(error)} in stage {name}: {_sentence(error)}"
            raise
        record = StageRecord(
            name=name,
            artifact=result if isinstance(result, Artifact) else None,
            seconds=time.perf_counter() - started,
            peak_bytes=self._sampler.stage_peak_bytes(),
        )
        self.story.records.append(record)
        self._watch.say(
            f"{name:<24} {record.outcome:<7} {duration(record.seconds):>13} "
            f"{memory(record.peak_bytes):>9}"
        )
        return result


@contextmanager
def started_run(flow: str, recipe: RecipeType) -> Iterator[Run[RecipeType]]:
    """A run of the flow `flow`, called inside it; on leaving, its report is published.

    A run that failed or was stopped publishes what it has, and says where it ended. Raises what
    happened inside; trouble with publishing never hides it. Raises UserError at once where no
    tracker can be reached.
    """
    recipe.place.refuse_unreachable_tracker()
    started = time.perf_counter()
    story = Story(flow=flow, recipe=recipe, flow_run_url=flow_run.ui_url or "")
    tags = {
        "bertsmith.flow_run": flow_run.id or "",
        "bertsmith.flow": flow,
        "bertsmith.recipe": recipe.name,
    }
    with MemorySampler() as sampler, Watch(flow) as watch:
        context = recipe.place.context(observe=watch.observe, tags=tags)
        run = Run(recipe, context, story, watch, sampler)
        try:
            yield run
        except BaseException as error:
            story.failure = story.failure or f"{_how_it_ended(error)}: {_sentence(error)}"
            _close(story, watch, sampler, started)
            try:
                publish_report(story, run.tracker)
            except Exception as trouble:
                raise error from trouble
            raise
        _close(story, watch, sampler, started)
        publish_report(story, run.tracker)


def _close(story: Story, watch: Watch, sampler: MemorySampler, started: float) -> None:
    story.notes.extend(watch.notes)
    story.seconds = time.perf_counter() - started
    story.peak_bytes = sampler.peak_bytes


def _how_it_ended(error: BaseException) -> str:
    """What stops a process, such as Ctrl-C or a cancellation, is no Exception."""
    return "failed" if isinstance(error, Exception) else "stopped"


def _sentence(error: BaseException) -> str:
    """The first line of what was raised, without secrets."""
    lines = redacted(str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__
