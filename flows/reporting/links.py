"""Where a person looks at things: pages of MLflow, in the view for training.

A fresh browser would open MLflow's view for language-model applications; the address chooses.
"""

import os

from prefect.runtime import flow_run

from flows.services.local_api import LocalApi
from pipelines.core.redaction import redacted
from pipelines.registry.registration import RegisteredModel

_VIEW = "?workflowType=machine_learning"


def flow_run_page() -> str:
    """Prefect's page of the flow run that is going on; empty where its API ends with it."""
    address = os.environ.get("PREFECT_API_URL")
    if address and address == LocalApi.url_of_this_process:
        return ""
    return flow_run.ui_url or ""


def model_page(tracking_uri: str, model: RegisteredModel) -> str | None:
    """The registry's page of this version; None where no server shows it."""
    if not tracking_uri.startswith("http"):
        return None
    return f"{_home(tracking_uri)}/#/models/{model.name}/versions/{model.version}{_VIEW}"


def run_page(tracking_uri: str, experiment_id: str, run_id: str) -> str | None:
    """The page of a run; None where no server shows it."""
    if not tracking_uri.startswith("http"):
        return None
    return f"{_home(tracking_uri)}/#/experiments/{experiment_id}/runs/{run_id}{_VIEW}"


def _home(tracking_uri: str) -> str:
    return redacted(tracking_uri).rstrip("/")
