"""Where a person looks at things: pages of MLflow."""

from pipelines.registry.registration import RegisteredModel


def model_page(tracking_uri: str, model: RegisteredModel) -> str | None:
    """The registry's page of this version; None where no server shows it."""
    if not tracking_uri.startswith("http"):
        return None
    return f"{tracking_uri.rstrip('/')}/#/models/{model.name}/versions/{model.version}"


def run_page(tracking_uri: str, experiment_id: str, run_id: str) -> str | None:
    """The page of a run; None where no server shows it."""
    if not tracking_uri.startswith("http"):
        return None
    return f"{tracking_uri.rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}"
