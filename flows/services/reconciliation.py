"""Runs that both servers still show as running although their process is gone.

A run is dead if its lock in the home exists and is free. A run that the worker accepted is dead too
if it never took its lock and the worker is gone with everything it started. All other runs are left
alone: they may be running on another machine, or from another home.
"""

from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed

from flows.stopping import is_dead, lock_path

_OPEN = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
_PAGE = 200


def end_dead_flow_runs(home: Path, work_pool: str, *, worker_is_gone: bool, why: str) -> list[str]:
    """Set Prefect's dead runs to Crashed, or to Cancelled if that was requested; their names.

    `why` is a sentence for their pages. Their task runs end too, and their concurrency slots are
    released.
    """
    ended = []
    with get_client(sync_client=True) as client:
        for run in _open_flow_runs(client):
            dead = is_dead(home, str(run.id))
            if dead is None:
                was_taken = run.work_pool_name == work_pool and run.state_type != StateType.RUNNING
                dead = worker_is_gone and was_taken
            if dead:
                _end(client, run, why)
                lock_path(home, str(run.id)).unlink(missing_ok=True)
                ended.append(run.name)
    return ended


def is_over(home: Path, flow_run_id: str) -> bool:
    """Whether the run has ended for Prefect, and no process works on it."""
    if is_dead(home, flow_run_id) is False:
        return False
    with get_client(sync_client=True) as client:
        try:
            run = client.read_flow_run(UUID(flow_run_id))
        except (ObjectNotFound, ValueError):
            return False
    return run.state is not None and run.state.is_final()


def _open_flow_runs(client: SyncPrefectClient) -> list[FlowRun]:
    runs: list[FlowRun] = []
    is_open = FlowRunFilter.model_validate({"state": {"type": {"any_": _OPEN}}})
    while True:
        page = client.read_flow_runs(flow_run_filter=is_open, limit=_PAGE, offset=len(runs))
        runs.extend(page)
        if len(page) < _PAGE:
            return runs


def _end(client: SyncPrefectClient, run: FlowRun, why: str) -> None:
    open_tasks = client.read_task_runs(
        flow_run_filter=FlowRunFilter.model_validate({"id": {"any_": [run.id]}}),
        task_run_filter=TaskRunFilter.model_validate({"state": {"type": {"any_": _OPEN}}}),
        limit=_PAGE,
    )
    for task_run in open_tasks:
        client.set_task_run_state(task_run.id, Crashed(message=why), force=True)
    ended = Cancelled if run.state_type == StateType.CANCELLING else Crashed
    message = f"{why} Start it again to resume it."
    client.set_flow_run_state(run.id, ended(message=message), force=True)
