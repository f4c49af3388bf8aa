"""What the servers of a home, their worker and its flow runs find in their environment."""

import os
from collections.abc import Mapping
from pathlib import Path

from flows.services.credentials import Credentials
from flows.services.record import Services
from pipelines.core.tracking.sign_in import home_variables

_LEASES = "prefect.server.concurrency.lease_storage.filesystem"


def client_variables(home: Path, services: Services, credentials: Credentials) -> Mapping[str, str]:
    """What any program needs to speak to both servers, those that are not ours too."""
    return {**_own_variables(home, services, credentials), **credentials.for_mlflow_clients()}


def service_variables(
    home: Path, services: Services, credentials: Credentials
) -> Mapping[str, str]:
    """The whole environment of a service."""
    return {
        **os.environ,
        **_own_variables(home, services, credentials),
        **credentials.for_prefect_server(services.prefect_url),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # seven processes that nothing here uses
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_UI_API_URL": services.prefect_api_url,  # else the page asks port 4200
        # Who holds a deployment's slot: in memory, a server that is started again forgets it.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": _LEASES,
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    }


def _own_variables(home: Path, services: Services, credentials: Credentials) -> Mapping[str, str]:
    """What our programs need; MLflow's password goes to this server alone."""
    return {
        "BERTSMITH_HOME": str(home),
        "PREFECT_API_URL": services.prefect_api_url,
        **credentials.for_prefect_clients(),
        "MLFLOW_TRACKING_URI": services.mlflow_url,
        **home_variables(services.mlflow_url, credentials.user, credentials.password),
    }
