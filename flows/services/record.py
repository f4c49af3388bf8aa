"""What `bertsmith up` started, as it wrote it down."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from flows.services.processes.identity import ProcessIdentity
from pipelines.core.errors import UserError

RECORD_NAME = "services.json"
PREFECT_SERVER = "Prefect server"
MLFLOW_SERVER = "MLflow server"
WORKER = "Prefect worker"
NAMES = (PREFECT_SERVER, MLFLOW_SERVER, WORKER)


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """One process that `up` started."""

    name: str
    process: ProcessIdentity
    log: str

    def is_running(self) -> bool:
        """Whether the very process that was started still runs."""
        return self.process.is_running()


@dataclass(frozen=True, slots=True)
class Services:
    """The servers and the worker of one home."""

    prefect_url: str
    mlflow_url: str
    work_pool: str
    mark: str  # in the environment of every process that descends from them
    processes: tuple[ServiceProcess, ...] = ()

    @property
    def prefect_api_url(self) -> str:
        """Where clients of the Prefect server go."""
        return f"{self.prefect_url}/api"

    def running(self, name: str) -> ServiceProcess | None:
        """The process of the service `name` while it runs."""
        found = (process for process in self.processes if process.name == name)
        return next((process for process in found if process.is_running()), None)

    def with_process(self, process: ServiceProcess) -> "Services":
        """These services with `process` in place of an earlier one of its name."""
        others = tuple(other for other in self.processes if other.name != process.name)
        return replace(self, processes=(*others, process))


def read_services(home: Path) -> Services | None:
    """The services of this home while both servers run, else None."""
    services = read_record(home)
    if services is None or not all(map(services.running, (PREFECT_SERVER, MLFLOW_SERVER))):
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
        values = json.loads(path.read_text())
        processes = tuple(
            ServiceProcess(process["name"], ProcessIdentity(**process["process"]), process["log"])
            for process in values.pop("processes")
        )
        return Services(**values, processes=processes)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} must be what `bertsmith up` of this version wrote, but it is not; end the "
            "processes that it names (`bertsmith down` of the version that started them does), "
            "then remove it"
        ) from error


def write_record(home: Path, services: Services) -> None:
    """Write down what runs now."""
    from pipelines.artifacts.attempts.commit import write_to_disk  # no command that reads needs it

    write_to_disk(home / RECORD_NAME, json.dumps(asdict(services), indent=2) + "\n")


def remove_record(home: Path) -> None:
    """Nothing runs any more."""
    (home / RECORD_NAME).unlink(missing_ok=True)
