"""Runs of the tracker that nothing computes any more."""

from collections.abc import Callable

from pipelines.tracking.tracker import server_address  # isort: skip  (MLflow's environment)
from mlflow import MlflowClient
from mlflow.entities import RunStatus, ViewType

FLOW_RUN_TAG = "bertsmith.flow_run"
_PAGE = 1000


def end_abandoned_runs(uri: str, is_abandoned: Callable[[str], bool]) -> list[str]:
    """Set the open runs of abandoned flow runs to KILLED; returns their names.

    `is_abandoned(flow run id)` is asked for every open run that carries a flow run's tag.
    """
    client = MlflowClient(tracking_uri=server_address(uri))
    experiments = client.search_experiments(view_type=ViewType.ACTIVE_ONLY)
    ended = []
    for run in client.search_runs(
        [experiment.experiment_id for experiment in experiments],
        "attributes.status = 'RUNNING'",
        max_results=_PAGE,
    ):
        flow_run = run.data.tags.get(FLOW_RUN_TAG)
        if flow_run and is_abandoned(flow_run):
            client.set_terminated(run.info.run_id, RunStatus.to_string(RunStatus.KILLED))
            ended.append(run.info.run_name or run.info.run_id)
    return ended
