"""Where results are kept and who computes: what a recipe says of its surroundings."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from pipelines.artifacts import ArtifactStore
from pipelines.core.settings import Settings
from pipelines.core.stage import Observer, StageContext, ignore
from pipelines.home import home_folder

if TYPE_CHECKING:  # importing MLflow takes a second that reading a recipe need not spend
    from pipelines.core.tracking import Tracker


class PlaceSettings(Settings):
    """Store, tracker and workers. None of these changes a byte of any artifact."""

    home: str = Field(
        default="",
        description="Folder for the store and the tracker of local runs; empty: $BERTSMITH_HOME, "
        "or .bertsmith in the current folder.",
    )
    store: str = Field(
        default="",
        description="Artifact store: a folder or a URL such as s3://bucket/prefix; "
        "empty: the folder store of the home.",
    )
    tracking_uri: str = Field(
        default="",
        description="MLflow tracking server; empty: $MLFLOW_TRACKING_URI, or SQLite in the home.",
    )
    experiment: str = Field(default="bertsmith", description="MLflow experiment of the runs.")
    num_workers: int = Field(
        default=2, ge=1, le=4096, description="Tasks that run at once in the data stages."
    )
    training_workers: int = Field(
        default=1, ge=1, le=4096, description="Ray Train workers that share a training."
    )

    def home_folder(self) -> Path:
        """The absolute home folder."""
        return home_folder(self.home)

    def store_url(self) -> str:
        """The absolute URL or path of the artifact store."""
        store = self.store or str(self.home_folder() / "store")
        return store if "://" in store else str(Path(store).absolute())

    def tracker(self, tags: Mapping[str, str]) -> "Tracker":
        """The MLflow server; a local home keeps SQLite and files, and is made where missing."""
        from pipelines.core.tracking import Tracker

        uri = self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        if uri:
            return Tracker(uri=uri, experiment=self.experiment, tags=dict(tags))
        home = self.home_folder()
        home.mkdir(parents=True, exist_ok=True)
        return Tracker(
            uri=f"sqlite:///{home / 'mlflow.db'}",
            experiment=self.experiment,
            artifact_location=(home / "mlartifacts").as_uri(),
            tags=dict(tags),
        )

    def context(
        self, *, observe: Observer = ignore, tags: Mapping[str, str] | None = None
    ) -> StageContext:
        """The surroundings that stages are given."""
        return StageContext(
            store=ArtifactStore(self.store_url()),
            num_workers=self.num_workers,
            training_workers=self.training_workers,
            observe=observe,
            tracker=self.tracker(tags or {}),
        )
