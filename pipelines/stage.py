"""What a stage is: how it is declared, and what it is given beside settings and inputs."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipelines.config.runtime import RuntimeSettings
from pipelines.store import ArtifactStore

if TYPE_CHECKING:
    from pipelines.tracking.tracker import Tracker
    # importing MLflow takes a second that data workers need not spend

Statistics = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One link of the chain, declared in its folder's `__init__`, which imports nothing heavy."""

    name: str  # of its folder and, where it has settings, of its section of the recipe
    title: str  # what a person reads
    kind: str  # of its artifact
    version: int  # raise when the same settings and inputs would give other bytes
    headline: Callable[[Statistics], str]  # the one count or figure that says most


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a stage has come, for whoever watches: a terminal, a log, the Prefect page."""

    stage: str
    done: float
    total: float
    unit: str
    figures: Mapping[str, float | str] = field(default_factory=dict)
    note: str = ""  # a sentence worth a line of the log, such as "resumed from step 120"
    seconds_left: float | None = None  # where the stage knows better than its rate so far tells

    @property
    def fraction(self) -> float:
        """Share of the work done, between 0 and 1; 0 where the total is not known yet."""
        return min(1.0, self.done / self.total) if self.total > 0 else 0.0


Observer = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Watch nothing."""


def send_note(observe: Observer, stage: str, note: str) -> None:
    """Send a sentence for the log, without any progress."""
    observe(Progress(stage=stage, done=0, total=0, unit="steps", note=note))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """The surroundings of a stage; none of them changes a byte of what it makes."""

    store: ArtifactStore
    # by default a single worker of each kind
    runtime: RuntimeSettings = field(
        default_factory=lambda: RuntimeSettings(num_workers=1, training_workers=1)
    )
    observe: Observer = ignore
    tracker: "Tracker | None" = None  # stages that train record their runs there

    def watch(
        self, stage: str, unit: str, total: int, *, done: int = 0, **figures: str
    ) -> Callable[[int, Any], None]:
        """For `map_tasks`: tells the observer of each result, one more than `done` of `total`."""
        counter = itertools.count(done + 1)

        def on_result(index: int, result: Any) -> None:
            number = next(counter)
            self.observe(
                Progress(
                    stage=stage, done=number, total=max(total, number), unit=unit, figures=figures
                )
            )

        return on_result
