"""The base of all settings, our environment variables, and the surroundings of a run."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from pipelines.errors import Uri, UserError


class Tabs:
    """Annotates a discriminated union: each of its models is a tab of the Prefect form.

    Prefect draws tabs with fields for `anyOf` and an empty box for pydantic's `oneOf`.
    """

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema: dict[str, Any] = handler(core_schema)
        schema["anyOf"] = schema.pop("oneOf")
        del schema["discriminator"]
        return schema


class Settings(BaseModel):
    """Frozen settings that refuse unknown keys; every field has a default and a description.

    The same model is a stage's settings, a section of the recipe's YAML, the command line's
    dotted paths and the Prefect form.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        # What the Prefect form calls a section: "Pretraining", not "PretrainingSettings".
        model_title_generator=lambda model: model.__name__.removesuffix("Settings"),
    )

    def values(self, *, only_what_was_set: bool = False) -> dict[str, Any]:
        """All values with the secrets of addresses, to make another model from.

        What is saved or shown is `model_dump(mode="json")`, which has none.
        """
        return self.model_dump(exclude_unset=only_what_was_set)


def home_folder(home: str | Path | None = None) -> Path:
    """The absolute home: what was given, else $BERTSMITH_HOME, else .bertsmith here.

    A leading `~` is expanded: in recipes and options no shell does it.
    Raises UserError where something that is no folder has that name, and where it has a `?`.
    """
    named = Path(home or os.environ.get("BERTSMITH_HOME") or ".bertsmith")
    folder = expanded(named).absolute()
    if "?" in str(folder):
        raise UserError(
            f"the home folder {folder} has a ? in its name, where the address of a database ends; "
            "choose another with --home or $BERTSMITH_HOME"
        )
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        raise UserError(
            f"{nearest} is a file and cannot be the home folder; choose another with --home or "
            "$BERTSMITH_HOME, or move the file away"
        )
    return folder


def expanded(path: Path) -> Path:
    """The path with a leading `~` put in full; UserError where there is no such user."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise UserError(
            f"{path} begins with an unknown user's home folder; write the path in full"
        ) from None


def make_home(folder: Path) -> Path:
    """Make the home, or a folder of it, where it is missing; UserError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the home folder {folder} cannot be made ({error.strerror}); choose another with "
            "--home or $BERTSMITH_HOME"
        ) from error
    return folder


DATABASE_NAME = "mlflow.db"  # of the home's own tracker
DeviceKind = Literal["auto", "cpu", "gpu"]
_Count = Annotated[int, Field(ge=1, le=4096)]


class RuntimeSettings(Settings):
    """Store, tracker and workers. None of these changes what an artifact is made from but
    `device` and `precision`, which are part of the names of trained ones.

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
    wait_for_nodes_seconds: int = Field(
        default=0,
        ge=0,
        le=86_400,
        description="How long a training run waits for nodes of the cluster's autoscaler if its "
        "smallest number of workers does not fit; 0: it fails at once.",
    )
    max_failures: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="How often a worker or its node may die before the training run fails.",
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

    def named_tracker(self) -> str:
        """The tracker's URI that the recipe or the environment names; empty for the home's own."""
        return self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")
