"""A flow run in progress: runs its stages, times them, and tells those who watch."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from prefect import Task
from prefect.runtime import flow_run

from flows.quantities import duration, memory
from flows.report import publish_report
from flows.services.run_records import recorded_run
from flows.story import StageRecord, Story
from flows.usage import MemorySampler
from flows.watch import Watch
from pipelines.artifacts import Artifact
from pipelines.recipes import CorpusRecipe
from pipelines.stage import StageContext
from pipelines.tracking import Tracker

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
        """Run a stage as a task called `name`, and record what it made and what it took."""
        self._sampler.start_stage()
        started = time.perf_counter()
        result = task.with_options(task_run_name=f"{name} of {self.recipe.name}")(
            *inputs, **options
        )
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
    """A run of the flow `flow`, called inside it; on leaving, its report is published."""
    started = time.perf_counter()
    story = Story(flow=flow, recipe=recipe, flow_run_url=flow_run.ui_url or "")
    tags = {
        "bertsmith.flow_run": flow_run.id or "",
        "bertsmith.flow": flow,
        "bertsmith.recipe": recipe.name,
    }
    with recorded_run(flow_run.id), MemorySampler() as sampler, Watch(flow) as watch:
        context = recipe.place.context(observe=watch.observe, tags=tags)
        run = Run(recipe, context, story, watch, sampler)
        try:
            yield run
        finally:
            story.notes.extend(watch.notes)
        story.seconds = time.perf_counter() - started
        story.peak_bytes = sampler.peak_bytes
        publish_report(story, run.tracker)
