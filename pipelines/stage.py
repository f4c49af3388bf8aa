"""What a stage is, and what it is given beside settings and inputs: checked, and opened."""

import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipelines.errors import UserError
from pipelines.settings import DATABASE_NAME, RuntimeSettings, make_home
from pipelines.store import ArtifactStore
from pipelines.tracking.address import check_tracker_reachable, database_file

if TYPE_CHECKING:  # importing MLflow takes a second that data workers need not spend
    from pipelines.tracking.tracker import Tracker


IMPORTED: Final = "imported_model"  # the kind of artifact of a model from elsewhere
Statistics = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One link of the chain, declared in `pipelines/stages/__init__.py` without heavy imports."""

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
    """The surroundings of a stage; data stages make the same bytes in any."""

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


def check_tracker(runtime: RuntimeSettings) -> None:
    """Raise UserError in seconds where no tracker can answer."""
    if uri := runtime.named_tracker():
        check_tracker_reachable(uri)


def check_store_and_tracker(runtime: RuntimeSettings) -> None:
    """Raise UserError in seconds where store or tracker cannot be one, or do not answer."""
    if runtime.store_url().startswith("memory://"):
        raise UserError(
            "runtime.store cannot be memory://, which every process has for itself; choose a "
            "folder or s3://bucket/prefix"
        )
    store = ArtifactStore(runtime.store_url(), is_patient=False)
    store.find("corpus", "0" * 32)  # any look-up asks the store
    check_tracker(runtime)


def check_nodes(runtime: RuntimeSettings, *, trains: bool = False) -> None:
    """Raise UserError where a node of the cluster that RAY_ADDRESS names cannot take part.

    Where something `trains` it has to reach the tracker too.
    """
    if os.environ.get("RAY_ADDRESS"):  # else Ray is not imported
        from pipelines import cluster

        database = _database(runtime) if trains else None
        cluster.check_nodes(ArtifactStore(runtime.store_url()), database)


def open_tracker(runtime: RuntimeSettings, tags: Mapping[str, str] | None = None) -> "Tracker":
    """The MLflow server; a local home keeps SQLite and files, and is made where missing.

    Files lie beside a SQLite database: by MLflow's default, whatever folder a command runs in
    gets a folder `mlruns`.
    """
    from pipelines.tracking.tracker import Tracker

    database, uri = _database(runtime), runtime.named_tracker()
    if not uri:
        make_home(runtime.home_folder())
    return Tracker(
        uri=uri or f"sqlite:///{database}",
        experiment=runtime.experiment,
        artifact_location=(database.parent / "mlartifacts").as_uri() if database else None,
        tags=dict(tags or {}),
    )


def has_registry(runtime: RuntimeSettings) -> bool:
    """Whether there may be a registry: False where the file of an SQLite database is missing.

    MLflow's client would create it, and it would say that no model is registered.
    """
    database = _database(runtime)
    return database is None or database.exists()


def _database(runtime: RuntimeSettings) -> Path | None:
    """The tracker's SQLite file; None for a server."""
    uri = runtime.named_tracker()
    return database_file(uri) if uri else runtime.home_folder() / DATABASE_NAME


def open_context(
    runtime: RuntimeSettings, *, observe: Observer = ignore, tags: Mapping[str, str] | None = None
) -> StageContext:
    """The surroundings that stages are given."""
    return StageContext(
        store=ArtifactStore(runtime.store_url()),
        runtime=runtime,
        observe=observe,
        tracker=open_tracker(runtime, tags),
    )
