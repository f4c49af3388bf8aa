"""MLflow: runs, metrics and lineage. Trouble with the tracker never stops a training run."""

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import mlflow
from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import InvalidUrlException, MlflowException
from requests import HTTPError
from sqlalchemy.exc import SQLAlchemyError

from pipelines.errors import UserError, first_line, redacted
from pipelines.store.access import FULL, lacks_credentials, store_errors

logger = logging.getLogger(__name__)
logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells of every table it creates

FINGERPRINT_TAG = "bertsmith.fingerprint"
COMPUTED_ON_TAG = "bertsmith.computed_on"  # .processor, … of the process that made the figures
_TRAINING_VIEW = "custom_model_development"  # MLflow's page shows runs and curves first

_PARAMS_AT_ONCE, _MOST_CHARACTERS = 100, 6_000  # that MLflow takes, of a batch and of a value
_one_at_a_time = threading.Lock()
_WILL_FAIL_AGAIN = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_TRANSIENT_CODES = (  # of MLflow, which says INTERNAL_ERROR of refused connections and any 5xx
    "INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "DEADLINE_EXCEEDED", "REQUEST_LIMIT_EXCEEDED",
    "RESOURCE_EXHAUSTED",
)  # fmt: skip


def is_transient(error: object) -> bool:
    """Whether a tracker, a store, a disk or a network failed in a way that a retry may cure."""
    while isinstance(error, UserError):  # a sentence around what the tracker or the store said
        if error.is_transient or error.__cause__ is error:
            return error.is_transient
        error = error.__cause__
    if isinstance(error, MlflowException):
        return error.error_code in _TRANSIENT_CODES and not isinstance(error, InvalidUrlException)
    if isinstance(error, HTTPError) and error.response is not None:
        return error.response.status_code >= 500 or error.response.status_code == 429
    if type(error).__module__.startswith("botocore."):  # S3's client
        return not lacks_credentials(error) and "SSL" not in type(error).__name__
    is_lasting = isinstance(error, _WILL_FAIL_AGAIN) or getattr(error, "errno", None) in FULL
    return isinstance(error, OSError) and not is_lasting


def tracker_errors() -> tuple[type[Exception], ...]:
    """What a tracker that fails may raise: where its files are kept, other errors than MLflow's."""
    return (MlflowException, SQLAlchemyError, *store_errors())


def final(name: str) -> str:
    """What the figure `name` of a finished model is called: its own name is the curve's."""
    return f"final/{name}"


@contextmanager
def _environment_kept(*names: str) -> Iterator[None]:
    """What the block does to these variables is undone."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def make_default(uri: str) -> None:
    """Make `uri` this process's default server for runs and registered models.

    MLflow also writes it into the environment, where the next run of this process would take it
    for the user's own setting, and use it for another home: so that is undone.
    """
    with _one_at_a_time, _environment_kept("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        mlflow.set_tracking_uri(uri)
        mlflow.set_registry_uri(uri)


@contextmanager
def time_for_files() -> Iterator[None]:
    """Inside, a request of this process may take an hour, as an upload of a large file does."""
    with _environment_kept("MLFLOW_HTTP_REQUEST_TIMEOUT"):
        os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "3600"  # MLflow reads it with each request
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracker:
    """Which MLflow server and experiment a run belongs to, and the tags all its runs carry."""

    uri: str = field(repr=False)  # may hold a password: `shown_uri` is for people and files
    experiment: str
    artifact_location: str | None = None  # where a new experiment keeps its files; None: server's
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown_uri(self) -> str:
        """The URI without its secrets."""
        return redacted(self.uri)

    def client(self) -> MlflowClient:
        """A client of the server, which becomes this process's default too.

        MLflow's SQL registry looks logged models up there.
        """
        make_default(self.uri)
        return MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)

    def experiment_id(self) -> str:
        """The experiment's id; it is created where it is missing. UserError without an answer."""
        with self.answering(), self.taking_turns():
            client = self.client()
            experiment = client.get_experiment_by_name(self.experiment)
            if experiment is not None:
                return experiment.experiment_id
            return client.create_experiment(
                self.experiment, self.artifact_location, {"mlflow.experimentKind": _TRAINING_VIEW}
            )

    def create_run(
        self, name: str, fingerprint: str, params: Mapping[str, object], tags: Mapping[str, str]
    ) -> str:
        """The id of a new run that records the artifact `fingerprint`."""
        experiment_id = self.experiment_id()
        with self.answering():
            client = self.client()
            every = {**self.tags, **tags, FINGERPRINT_TAG: fingerprint}
            run = client.create_run(experiment_id, run_name=name, tags=every)
            client.log_batch(run.info.run_id, params=_params(params))
            return run.info.run_id

    def find_run(self, fingerprint: str) -> Run | None:
        """The newest run that records the artifact `fingerprint`; UserError without an answer."""
        experiment_id = self.experiment_id()
        with self.answering():
            query = f"tags.`{FINGERPRINT_TAG}` = '{fingerprint}'"
            runs = self.client().search_runs([experiment_id], query, max_results=1)
        return runs[0] if runs else None

    def finish(
        self,
        run_id: str,
        metrics: Mapping[str, float],
        computed_on: Mapping[str, str] | None = None,
    ) -> None:
        """Record the final figures and end the run; a tracker that is away leaves it open.

        `computed_on` is the machine that computed them, where it is known: a registered model
        has to repeat them exactly on such a one.
        """
        now = int(time.time() * 1000)
        points = [Metric(final(key), value, now, 0) for key, value in metrics.items()]
        machine = computed_on or {}
        tags = [RunTag(f"{COMPUTED_ON_TAG}.{key}", value) for key, value in machine.items()]
        with leaving_open(run_id):
            client = self.client()
            client.log_batch(run_id, points, tags=tags)
            client.set_terminated(run_id, "FINISHED", end_time=now)

    def abandon(self, run_id: str, error: BaseException) -> None:
        """End the run of work that `error` ended: KILLED where someone stopped it, else FAILED."""
        status = "FAILED" if isinstance(error, Exception) else "KILLED"
        with leaving_open(run_id):
            self.client().set_terminated(run_id, status)

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Add tags to a run."""
        self.client().log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def log_params(self, run_id: str, params: Mapping[str, object]) -> None:
        """Add parameters to a run; those that it has keep their values, as MLflow wants it."""
        client = self.client()
        known = client.get_run(run_id).data.params
        values = _params({key: value for key, value in params.items() if key not in known})
        for first in range(0, len(values), _PARAMS_AT_ONCE):
            client.log_batch(run_id, params=values[first : first + _PARAMS_AT_ONCE])

    def taking_turns(self) -> AbstractContextManager[object]:
        """One process at a time is in such a block, where the tracker is a SQLite file.

        MLflow makes its tables, and moves an alias, in steps that two must not take at once.
        """
        if not self.uri.startswith("sqlite:///"):
            return nullcontext()
        return FileLock(self.uri.removeprefix("sqlite:///") + ".lock")

    @contextmanager
    def answering(self) -> Iterator[None]:
        """What the tracker says instead of an answer becomes one sentence."""
        try:
            yield
        except tracker_errors() as error:
            raise UserError(
                f"the MLflow tracker at {self.shown_uri} failed: {first_line(error)}; check its "
                "address and password, start it (`bertsmith up`) or choose another tracking_uri"
            ) from error


@contextmanager
def leaving_open(run: str) -> Iterator[None]:
    """A block in which a tracker that is away costs a warning: `run` stays open."""
    errors: tuple[type[Exception], ...] = (UserError, *tracker_errors())
    try:
        yield
    except errors as error:
        logger.warning("the run %s stays open: %s", run, first_line(error))


def _params(values: Mapping[str, object]) -> list[Param]:
    return [Param(key, redacted(str(value))[:_MOST_CHARACTERS]) for key, value in values.items()]
