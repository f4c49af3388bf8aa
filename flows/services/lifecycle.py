"""`bertsmith up` and `bertsmith down`: both servers and a worker of one home."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from flows.services import processes
from flows.services.ports import is_free
from flows.services.record import (
    ServiceProcess,
    Services,
    read_record,
    read_services,
    remove_record,
    write_record,
)
from pipelines.core.errors import UserError

WORK_POOL = "bertsmith"
_START_SECONDS = 180.0  # the first start makes two databases
_DEPLOYMENTS_FILE = "prefect.yaml"


def start_services(
    home: Path, *, prefect_port: int, mlflow_port: int, say: Callable[[str], None]
) -> Services:
    """Start what does not run yet: Prefect server, MLflow server, deployments, worker.

    Everything listens on 127.0.0.1 only. Raises UserError where a port is taken or a server does
    not come up; what was started by then is stopped again.
    """
    running = read_services(home)
    if running is not None:
        say("It is running already.")
        return running
    stop_services(home)  # what an earlier, half-dead set left
    for name, port in (("Prefect", prefect_port), ("MLflow", mlflow_port)):
        if not is_free(port):
            raise UserError(
                f"port {port} must be free for the {name} server, but something listens there; "
                f"stop it or choose another with --{name.lower()}-port"
            )
    home.mkdir(parents=True, exist_ok=True)
    services = Services(
        prefect_url=f"http://127.0.0.1:{prefect_port}",
        mlflow_url=f"http://127.0.0.1:{mlflow_port}",
        work_pool=WORK_POOL,
        processes=(),
    )
    try:
        return _start_all(home, services, say)
    except BaseException:
        stop_services(home)
        raise


def stop_services(home: Path) -> list[ServiceProcess]:
    """Stop exactly what `start_services` started for this home; returns what was running."""
    services = read_record(home)
    if services is None:
        return []
    stopped = processes.stop(services.processes)
    remove_record(home)
    return stopped


def deployments_file() -> Path:
    """The deployments: of this checkout, else those that were installed with the package."""
    checkout = Path(__file__).parents[2] / "infra" / _DEPLOYMENTS_FILE
    if checkout.is_file():
        return checkout
    return Path(sysconfig.get_path("data")) / "share" / "bertsmith" / _DEPLOYMENTS_FILE


def _start_all(home: Path, services: Services, say: Callable[[str], None]) -> Services:
    environment = _environment(home, services)
    logs = home / "logs"
    python = sys.executable
    prefect_port, mlflow_port = (
        url.rpartition(":")[2] for url in (services.prefect_url, services.mlflow_url)
    )

    def started(service: ServiceProcess) -> Services:
        """Write down each process at once: `down` must find it whatever happens next."""
        grown = replace(services, processes=(*services.processes, service))
        write_record(home, grown)
        return grown

    say("Starting the Prefect server and the MLflow server …")
    prefect = [python, "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
    services = started(
        processes.start(
            "Prefect server",
            [*prefect, "--port", prefect_port],
            environment,
            logs / "prefect-server.log",
        )
    )
    mlflow = [
        python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", mlflow_port,
        "--workers", "1", "--backend-store-uri", f"sqlite:///{home / 'mlflow.db'}",
        "--default-artifact-root", (home / "mlartifacts").as_uri(), "--no-serve-artifacts",
    ]  # fmt: skip
    services = started(
        processes.start("MLflow server", mlflow, environment, logs / "mlflow-server.log")
    )
    for service, url in zip(
        services.processes,
        (f"{services.prefect_api_url}/health", f"{services.mlflow_url}/health"),
        strict=True,
    ):
        processes.wait_until_it_answers(service, url, _START_SECONDS)
    say("Deploying the flows …")
    _run_prefect(
        ["work-pool", "create", WORK_POOL, "--type", "process", "--overwrite"], environment
    )
    _run_prefect(["deploy", "--all", "--prefect-file", str(deployments_file())], environment)
    worker = [python, "-m", "prefect", "worker", "start", "--pool", WORK_POOL, "--name", "local"]
    return started(
        processes.start("Prefect worker", worker, environment, logs / "prefect-worker.log")
    )


def _environment(home: Path, services: Services) -> Mapping[str, str]:
    """What the servers, the worker and its flow runs are told."""
    return {
        **os.environ,
        "BERTSMITH_HOME": str(home),
        "MLFLOW_TRACKING_URI": services.mlflow_url,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # seven processes that nothing here uses
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_API_URL": services.prefect_api_url,
        "PREFECT_UI_API_URL": services.prefect_api_url,  # else the page asks port 4200
        "PREFECT_WORKER_QUERY_SECONDS": "2",
    }


def _run_prefect(arguments: list[str], environment: Mapping[str, str]) -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode != 0:
        said = (completed.stderr or completed.stdout).strip()
        raise UserError(f"`prefect {' '.join(arguments)}` must succeed, but it said:\n{said}")
