"""What `bertsmith up` started, as it wrote it down: the only thing that `down` goes by."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

RECORD_NAME = "services.json"


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """One process and when it started: a process id alone may be someone else's by now."""

    name: str
    pid: int
    started: float  # seconds since the epoch, as the operating system tells it
    log: str

    def is_running(self) -> bool:
        """Whether the very process that was started still runs."""
        import psutil

        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < 1
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


@dataclass(frozen=True, slots=True)
class Services:
    """The servers and the worker of one home."""

    prefect_url: str
    mlflow_url: str
    work_pool: str
    processes: tuple[ServiceProcess, ...]

    @property
    def prefect_api_url(self) -> str:
        """Where clients of the Prefect server go."""
        return f"{self.prefect_url}/api"


def read_services(home: Path) -> Services | None:
    """The services of this home while its servers run, else None."""
    services = read_record(home)
    if services is None or not all(process.is_running() for process in services.processes):
        return None
    return services


def read_record(home: Path) -> Services | None:
    """What was written down, whether it still runs or not."""
    path = home / RECORD_NAME
    if not path.is_file():
        return None
    values = json.loads(path.read_text())
    processes = tuple(ServiceProcess(**process) for process in values.pop("processes"))
    return Services(**values, processes=processes)


def write_record(home: Path, services: Services) -> None:
    """Write down what runs now."""
    partial = home / f"{RECORD_NAME}.partial"
    partial.write_text(json.dumps(asdict(services), indent=2) + "\n")
    partial.replace(home / RECORD_NAME)


def remove_record(home: Path) -> None:
    """Nothing runs any more."""
    (home / RECORD_NAME).unlink(missing_ok=True)
