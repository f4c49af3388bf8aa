"""Pages where a person looks at a run: a report on Prefect's, models and runs on MLflow's.

A fresh browser would open MLflow's view for language-model applications; the address chooses.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prefect.runtime import flow_run

from flows.services.local_api import LocalApi
from pipelines.config.redaction import redacted
from pipelines.registry.registration import RegisteredModel

_VIEW = "?workflowType=machine_learning"


@contextmanager
def costing_the_page_alone(note: Callable[[str], None]) -> Iterator[None]:
    """Give `note` a sentence where the page cannot be written: by then the work itself is done."""
    try:
        yield
    # Prefect, its HTTP client and what draws the pictures have no kind of error in common.
    except Exception as error:  # noqa: BLE001
        note(f"the report is missing on the run's page: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """The first line of what was raised, without secrets."""
    lines = redacted(str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__


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
