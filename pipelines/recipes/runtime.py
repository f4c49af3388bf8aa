"""Where results are kept and who computes: what a recipe says of its surroundings."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from pipelines.artifacts import ArtifactStore
from pipelines.config.environment import expanded, home_folder, make_home
from pipelines.config.errors import Uri, UserError
from pipelines.config.settings import Settings
from pipelines.stage import DeviceKind, Observer, Ranks, Retention, StageContext, ignore
from pipelines.tracking.sign_in import check_tracker_reachable, database_file

if TYPE_CHECKING:  # importing MLflow takes a second that reading a recipe need not spend
    from pipelines.tracking.tracker import Tracker


DATABASE_NAME = "mlflow.db"  # of the home's own tracker
_Count = Annotated[int, Field(ge=1, le=4096)]


class RuntimeSettings(Settings):
    """Store, tracker and workers. None of these changes what an artifact is made from.

    How many workers share a training run shows in the rounding of its weights: sums have another
    order, and with `exchange_dtype="bf16"` gradients are rounded where there are two or more.
    """

    home: str = Field(
        default="",
        description="Folder for the store and the tracker of local runs; empty: $BERTSMITH_HOME, "
        "or .bertsmith in the current folder.",
    )
    store: Uri = Field(
        default="",
        description="Artifact store: a folder or a URL such as s3://bucket/prefix; "
        "empty: $BERTSMITH_STORE, or the folder store of the home.",
    )
    tracking_uri: Uri = Field(
        default="",
        description="MLflow tracking server; empty: $MLFLOW_TRACKING_URI, or SQLite in the home. "
        "Give user and password as $MLFLOW_TRACKING_USERNAME and $MLFLOW_TRACKING_PASSWORD.",
    )
    experiment: str = Field(default="bertsmith", description="MLflow experiment of the runs.")
    num_workers: int = Field(
        default=2, ge=1, le=4096, description="Tasks that run at once in the data stages."
    )
    training_workers: Literal["auto"] | _Count | tuple[_Count, _Count] = Field(
        default="auto",
        description="Ray Train workers that share a training run: a number, a range such as "
        "[2, 8] that follows the cluster, or auto: one per GPU; without GPUs one per core for "
        "small encoders and one per node for large ones.",
    )
    cpus_per_worker: _Count | None = Field(
        default=None,
        description="CPUs, and threads, of each training worker; empty: the cluster's are shared.",
    )
    device: DeviceKind = Field(
        default="auto",
        description="Device to train on: cpu; gpu (one per worker); auto: GPUs if there are any.",
    )
    wait_for_nodes_seconds: int | None = Field(
        default=None,
        ge=0,
        le=86_400,
        description="How long a training run waits for nodes of the cluster's autoscaler if its "
        "smallest number of workers does not fit; 0: it fails at once; empty: "
        "$BERTSMITH_WAIT_FOR_NODES_SECONDS, or 0.",
    )
    max_failures: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="How often a worker or its node may die before the training run fails.",
    )
    shard_optimizer_state: bool = Field(
        default=False,
        description="Each training worker holds the optimizer's state for a share of the "
        "parameters: less memory a worker, one more exchange a step.",
    )
    checkpointed_layers: int = Field(
        default=0,
        ge=0,
        description="So many of an encoder's lowest layers, at most all of them, keep only their "
        "input for the backward pass and are computed again there: less memory, more time.",
    )

    checkpoint_seconds: int = Field(
        default=60,
        ge=0,
        le=86_400,
        description="Also store a checkpoint at this interval, besides those of "
        "checkpoint_every_steps; less often if that would take more than 2% of the time; "
        "0: only those.",
    )
    keep_checkpoints: int = Field(
        default=2,
        ge=1,
        le=1000,
        description="How many of the newest checkpoints a training run keeps while it lasts; "
        "if one is damaged, the previous one is used.",
    )
    keep_best_checkpoints: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="Also keep this many with the lowest held-out loss, of those that were "
        "evaluated at their step.",
    )
    keep_checkpoints_every_steps: int | None = Field(
        default=None, ge=1, description="Also keep each one whose step is a multiple of this."
    )

    @model_validator(mode="after")
    def _range_rises(self) -> "RuntimeSettings":
        workers = self.training_workers
        if isinstance(workers, tuple) and workers[0] > workers[1]:
            raise ValueError(f"training_workers must be a rising range, got {list(workers)}")
        return self

    def home_folder(self) -> Path:
        """The absolute home folder."""
        return home_folder(self.home)

    def store_url(self) -> str:
        """The absolute URL or path of the artifact store."""
        named = self.store or os.environ.get("BERTSMITH_STORE", "")
        store = named or str(self.home_folder() / "store")
        return store if "://" in store else str(expanded(Path(store)).absolute())

    def check_tracker_reachable(self) -> None:
        """Return in seconds where a tracker may answer; call it before anything is built.

        Raises UserError for an unknown scheme, a host without an open port, an unwritable file.
        """
        uri = self._named_tracker()
        if uri:
            check_tracker_reachable(uri)

    def check_reachable(self) -> None:
        """Return in seconds where store and tracker may answer; call it before anything is built.

        Raises UserError for a store or a tracker that cannot be one, or that does not answer.
        """
        if self.store_url().startswith("memory://"):
            raise UserError(
                "runtime.store cannot be memory://, which every process has for itself; choose a "
                "folder or s3://bucket/prefix"
            )
        store = ArtifactStore(self.store_url(), is_patient=False)
        store.find("corpus", "0" * 32)  # any look-up asks the store
        self.check_tracker_reachable()

    def check_nodes(self, *, trains: bool = False) -> None:
        """Return where every node of the cluster that RAY_ADDRESS names can take part.

        Raises UserError for one that runs other code, does not see the store or, where something
        `trains`, would find another tracker than this process, since that is a file.
        """
        if os.environ.get("RAY_ADDRESS"):
            from pipelines.cluster.node_checks import check_nodes  # imports Ray

            uri = self._named_tracker()
            database = database_file(uri) if uri else self.home_folder() / DATABASE_NAME
            check_nodes(ArtifactStore(self.store_url()), database if trains else None)

    def tracker(self, tags: Mapping[str, str]) -> "Tracker":
        """The MLflow server; a local home keeps SQLite and files, and is made where missing.

        Files lie beside a SQLite database: by MLflow's default, whatever folder a command runs in
        gets a folder `mlruns`.
        """
        from pipelines.tracking.tracker import Tracker

        named = self._named_tracker()
        database = database_file(named) if named else make_home(self.home_folder()) / DATABASE_NAME
        return Tracker(
            uri=named or f"sqlite:///{database}",
            experiment=self.experiment,
            artifact_location=(database.parent / "mlartifacts").as_uri() if database else None,
            tags=dict(tags),
        )

    def has_registry(self) -> bool:
        """Whether models may be registered: a tracker is named, or the home's own was made."""
        return bool(self._named_tracker()) or (self.home_folder() / DATABASE_NAME).exists()

    def ranks(self) -> Ranks:
        """Who shares a training run.

        Raises UserError where $BERTSMITH_WAIT_FOR_NODES_SECONDS is asked and is no number.
        """
        wait = self.wait_for_nodes_seconds
        return Ranks(
            workers=self.training_workers,
            cpus_per_worker=self.cpus_per_worker,
            device=self.device,
            wait_for_nodes_seconds=_stated_wait() if wait is None else wait,
            max_failures=self.max_failures,
            shard_optimizer_state=self.shard_optimizer_state,
            checkpointed_layers=self.checkpointed_layers,
            checkpoint_seconds=self.checkpoint_seconds,
            keeping=Retention(
                latest=self.keep_checkpoints,
                best=self.keep_best_checkpoints,
                every_steps=self.keep_checkpoints_every_steps,
            ),
        )

    def _named_tracker(self) -> str:
        """The URI that someone named; empty for the home's own."""
        return self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")

    def context(
        self, *, observe: Observer = ignore, tags: Mapping[str, str] | None = None
    ) -> StageContext:
        """The surroundings that stages are given."""
        return StageContext(
            store=ArtifactStore(self.store_url()),
            num_workers=self.num_workers,
            ranks=self.ranks(),
            observe=observe,
            tracker=self.tracker(tags or {}),
        )


def _stated_wait() -> int:
    text = os.environ.get("BERTSMITH_WAIT_FOR_NODES_SECONDS", "").strip()
    if text and not text.isdecimal():
        raise UserError(
            f"BERTSMITH_WAIT_FOR_NODES_SECONDS is {text!r}; set a number of seconds such as 900, "
            "or unset it"
        )
    return int(text or 0)
