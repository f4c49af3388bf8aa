"""The store, the tracker and the cluster that runtime settings name: checked, and opened."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipelines.config.environment import make_home
from pipelines.config.errors import UserError
from pipelines.config.runtime import DATABASE_NAME, RuntimeSettings
from pipelines.stage import Observer, StageContext, ignore
from pipelines.store import ArtifactStore
from pipelines.tracking.address import check_tracker_reachable, database_file

if TYPE_CHECKING:  # importing MLflow takes a second that reading a recipe need not spend
    from pipelines.tracking.tracker import Tracker


def check_tracker(runtime: RuntimeSettings) -> None:
    """Return in seconds where a tracker may answer; call it before anything is built.

    Raises UserError for an unknown scheme, a host without an open port, an unwritable file.
    """
    uri = runtime.named_tracker()
    if uri:
        check_tracker_reachable(uri)


def check_store_and_tracker(runtime: RuntimeSettings) -> None:
    """Return in seconds where store and tracker may answer; call it before anything is built.

    Raises UserError for a store or a tracker that cannot be one, or that does not answer.
    """
    if runtime.store_url().startswith("memory://"):
        raise UserError(
            "runtime.store cannot be memory://, which every process has for itself; choose a "
            "folder or s3://bucket/prefix"
        )
    store = ArtifactStore(runtime.store_url(), is_patient=False)
    store.find("corpus", "0" * 32)  # any look-up asks the store
    check_tracker(runtime)


def check_nodes(runtime: RuntimeSettings, *, trains: bool = False) -> None:
    """Return where every node of the cluster that RAY_ADDRESS names can take part.

    Raises UserError for one that runs other code, does not see the store or, where something
    `trains`, would find another tracker than this process, since that is a file.
    """
    if os.environ.get("RAY_ADDRESS"):
        from pipelines.cluster import node_checks  # imports Ray

        uri = runtime.named_tracker()
        database = database_file(uri) if uri else runtime.home_folder() / DATABASE_NAME
        node_checks.check_nodes(ArtifactStore(runtime.store_url()), database if trains else None)


def open_tracker(runtime: RuntimeSettings, tags: Mapping[str, str] | None = None) -> "Tracker":
    """The MLflow server; a local home keeps SQLite and files, and is made where missing.

    Files lie beside a SQLite database: by MLflow's default, whatever folder a command runs in
    gets a folder `mlruns`.
    """
    from pipelines.tracking.tracker import Tracker

    named = runtime.named_tracker()
    database = database_file(named) if named else make_home(runtime.home_folder()) / DATABASE_NAME
    return Tracker(
        uri=named or f"sqlite:///{database}",
        experiment=runtime.experiment,
        artifact_location=(database.parent / "mlartifacts").as_uri() if database else None,
        tags=dict(tags or {}),
    )


def has_registry(runtime: RuntimeSettings) -> bool:
    """Whether models may be registered: a tracker is named, or the home's own was made."""
    return bool(runtime.named_tracker()) or (runtime.home_folder() / DATABASE_NAME).exists()


def open_context(
    runtime: RuntimeSettings,
    *,
    observe: Observer = ignore,
    tags: Mapping[str, str] | None = None,
) -> StageContext:
    """The surroundings that stages are given."""
    return StageContext(
        store=ArtifactStore(runtime.store_url()),
        runtime=runtime.with_waiting_resolved(),
        observe=observe,
        tracker=open_tracker(runtime, tags),
    )
