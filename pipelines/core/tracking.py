"""MLflow: runs, metrics and lineage. Trouble with the tracker never stops a training."""

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Read by MLflow when it is imported; a person's own setting wins.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # an outage costs 0 s, not 247 s
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
os.environ.setdefault("MLFLOW_ENABLE_TELEMETRY", "false")
os.environ.setdefault("DO_NOT_TRACK", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from pipelines.core.errors import UserError

logger = logging.getLogger(__name__)
logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells of every table it creates

FINGERPRINT_TAG = "bertsmith.fingerprint"
_TRAINING_VIEW = "custom_model_development"  # MLflow's page shows runs and curves first


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracker:
    """Which MLflow server and experiment a run belongs to, and the tags all its runs carry."""

    uri: str
    experiment: str
    artifact_location: str | None = None  # where a new experiment keeps its files; None: server's
    tags: Mapping[str, str] = field(default_factory=dict)

    def client(self) -> MlflowClient:
        """A client of the server.

        It becomes this process's default too: MLflow's SQL registry looks logged models up there.
        """
        mlflow.set_tracking_uri(self.uri)
        mlflow.set_registry_uri(self.uri)
        return MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)

    def experiment_id(self) -> str:
        """The experiment's id; the experiment is created where it is missing."""
        client = self.client()
        try:
            found = client.get_experiment_by_name(self.experiment)
            if found is not None:
                return found.experiment_id
            return client.create_experiment(
                self.experiment, self.artifact_location, {"mlflow.experimentKind": _TRAINING_VIEW}
            )
        except MlflowException as error:
            raise UserError(
                f"the MLflow tracker must answer at {self.uri}, but it said: "
                f"{str(error).splitlines()[0]}; start it (`bertsmith up`) or choose another "
                "tracking_uri"
            ) from error

    def open_run(
        self, name: str, fingerprint: str, params: Mapping[str, object], tags: Mapping[str, str]
    ) -> str:
        """The id of the run that records the artifact; it is found again after a restart."""
        client, experiment_id = self.client(), self.experiment_id()
        earlier = client.search_runs(
            [experiment_id], f"tags.`{FINGERPRINT_TAG}` = '{fingerprint}'", max_results=1
        )
        if earlier:
            run_id = earlier[0].info.run_id
            client.update_run(run_id, status="RUNNING")
            self.set_tags(run_id, self.tags)  # of who works on it now
            return run_id
        run = client.create_run(
            experiment_id,
            run_name=name,
            tags={**self.tags, **tags, FINGERPRINT_TAG: fingerprint},
        )
        client.log_batch(
            run.info.run_id,
            params=[Param(key, str(value)[:6000]) for key, value in params.items()],
        )
        return run.info.run_id

    def find_run(self, fingerprint: str) -> str | None:
        """The id of the newest run that records the artifact `fingerprint`, if there is one."""
        found = self.client().search_runs(
            [self.experiment_id()], f"tags.`{FINGERPRINT_TAG}` = '{fingerprint}'", max_results=1
        )
        return found[0].info.run_id if found else None

    def finish(self, run_id: str, metrics: Mapping[str, float], status: str = "FINISHED") -> None:
        """Record the final figures and end the run as FINISHED, FAILED or KILLED.

        A tracker that is down costs only these.
        """
        client, now = self.client(), _now_ms()
        points = [Metric(f"final/{key}", value, now, 0) for key, value in metrics.items()]
        try:
            client.log_batch(run_id, points)
            client.set_terminated(run_id, status)
        except MlflowException as error:
            logger.warning("the run %s stays open, the tracker does not answer: %s", run_id, error)

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Add tags to a run."""
        self.client().log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def log_file(self, run_id: str, path: Path, folder: str | None = None) -> None:
        """Keep a local file with the run."""
        self.client().log_artifact(run_id, str(path), folder)

    def log_text(self, run_id: str, text: str, name: str) -> None:
        """Keep a text with the run as the file `name`."""
        self.client().log_text(run_id, text, name)


def _now_ms() -> int:
    return int(time.time() * 1000)
