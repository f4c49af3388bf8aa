"""Where a person looks at things: pages of MLflow, in the view for training.

A fresh browser would open MLflow's view for language-model applications; the address chooses.
"""

from pipelines.core.redaction import redacted
from pipelines.registry.registration import RegisteredModel

_VIEW = "?workflowType=machine_learning"


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
