"""What `bertsmith up` started: a file of the home while it runs."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from flows.services.processes import is_running
from pipelines.config.errors import UserError

RECORD_NAME = "services.json"
PREFECT_SERVER = "Prefect server"
MLFLOW_SERVER = "MLflow server"
WORKER = "Prefect worker"
NAMES = (PREFECT_SERVER, MLFLOW_SERVER, WORKER)


@dataclass(frozen=True, slots=True)
class Services:
    """The servers and the worker of one home."""

    prefect_url: str
    mlflow_url: str
    mark: str  # in the environment of every process that descends from them
    pids: dict[str, int] = field(default_factory=dict)  # by name of the service

    @property
    def prefect_api_url(self) -> str:
        """Where clients of the Prefect server go."""
        return f"{self.prefect_url}/api"

    def is_running(self, name: str) -> bool:
        """Whether the process that was started for the service `name` still runs."""
        return name in self.pids and is_running(self.pids[name], self.mark, name)


def read_services(home: Path) -> Services | None:
    """The services of this home while both servers run, else None."""
    services = read_record(home)
    if services is None or not all(map(services.is_running, (PREFECT_SERVER, MLFLOW_SERVER))):
        return None
    return services


def read_record(home: Path) -> Services | None:
    """What was written down, whether it still runs or not.

    Raises UserError where the file is not what `write_record` of this version writes.
    """
    path = home / RECORD_NAME
    if not path.is_file():
        return None
    try:
        return Services(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{path} was not written by `bertsmith up` of this version; end the processes that it "
            "names (`bertsmith down` of the version that started them does), then remove it"
        ) from error


def write_record(home: Path, services: Services) -> None:
    """Write down what runs now."""
    from pipelines.artifacts.attempts.commit import write_to_disk  # no command that reads needs it

    write_to_disk(home / RECORD_NAME, json.dumps(asdict(services), indent=2) + "\n")


def remove_record(home: Path) -> None:
    """Nothing runs any more."""
    (home / RECORD_NAME).unlink(missing_ok=True)
