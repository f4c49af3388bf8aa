"""What every stage is given beside settings and inputs: where to write, how wide, who watches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipelines.artifacts import ArtifactStore
from pipelines.core.ranks import Ranks

if TYPE_CHECKING:  # importing MLflow takes a second that data workers need not spend
    from pipelines.core.tracking import Tracker


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a stage has come, for whoever watches: a terminal, a log, the Prefect page."""

    stage: str
    done: float
    total: float
    unit: str
    figures: Mapping[str, float | str] = field(default_factory=dict)
    note: str = ""  # a sentence worth a line of the log, such as "resumed from step 120"

    @property
    def fraction(self) -> float:
        """Share of the work done, between 0 and 1; 0 where the total is not known yet."""
        return min(1.0, self.done / self.total) if self.total > 0 else 0.0


Observer = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Watch nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """The surroundings of a stage; none of them changes a byte of what it makes."""

    store: ArtifactStore
    num_workers: int = 1  # tasks at once in the data stages
    ranks: Ranks = field(default_factory=Ranks)  # the processes that share a training
    observe: Observer = ignore
    tracker: "Tracker | None" = None  # stages that train record their runs there
