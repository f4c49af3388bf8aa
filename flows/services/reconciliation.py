"""Runs that both pages call running while nothing runs them: they are told so.

A run is dead where the process that its record names is. A run that the worker took is dead too
where it never came to leave a record and the worker with all it had started is gone. Every other
run is left alone: someone may be computing it on another machine, or from a home of their own.
"""

import argparse
import sys
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed

from flows.services.run_records import (
    forget_run,
    process_of_run,
    set_aside_unreadable_records,
)

_OPEN = (StateType.RUNNING, StateType.PENDING, StateType.CANCELLING)
_PAGE = 200


def end_dead_flow_runs(home: Path, work_pool: str, *, worker_is_gone: bool, why: str) -> list[str]:
    """Set Prefect's dead runs to Crashed, or Cancelled where someone asked for that.

    `why` is a sentence for their pages. Their task runs end with them, and their slots of a
    deployment's limit are released. Returns their names.
    """
    ended = []
    with get_client(sync_client=True) as client:
        for run in _open_flow_runs(client):
            process = process_of_run(home, str(run.id))
            if process is not None:
                is_dead = process.is_known_dead()
            else:
                was_taken = run.work_pool_name == work_pool and run.state_type != StateType.RUNNING
                is_dead = worker_is_gone and was_taken
            if is_dead:
                _end(client, run, why)
                forget_run(home, str(run.id))
                ended.append(run.name)
    return ended


def _open_flow_runs(client: SyncPrefectClient) -> list[FlowRun]:
    runs: list[FlowRun] = []
    is_open = FlowRunFilter.model_validate({"state": {"type": {"any_": list(_OPEN)}}})
    while True:
        page = client.read_flow_runs(flow_run_filter=is_open, limit=_PAGE, offset=len(runs))
        runs.extend(page)
        if len(page) < _PAGE:
            return runs


def _end(client: SyncPrefectClient, run: FlowRun, why: str) -> None:
    message = f"{why} Started again, it goes on where it stopped."
    open_tasks = client.read_task_runs(
        flow_run_filter=FlowRunFilter.model_validate({"id": {"any_": [run.id]}}),
        task_run_filter=TaskRunFilter.model_validate({"state": {"type": {"any_": list(_OPEN)}}}),
        limit=_PAGE,
    )
    for task_run in open_tasks:
        client.set_task_run_state(task_run.id, Crashed(message=why), force=True)
    ended = Cancelled if run.state_type == StateType.CANCELLING else Crashed
    client.set_flow_run_state(run.id, ended(message=message), force=True)


def is_over(home: Path, flow_run_id: str) -> bool:
    """Whether Prefect knows the run and that it ended, and no process of it lives."""
    process = process_of_run(home, flow_run_id)
    if process is not None and not process.is_known_dead():
        return False
    with get_client(sync_client=True) as client:
        try:
            run = client.read_flow_run(UUID(flow_run_id))
        except (ObjectNotFound, ValueError):
            return False
    return run.state is not None and run.state.is_final()


def main() -> None:
    """Reconcile what the environment's servers say of a home; a line for each run."""
    from pipelines.core.tracking.abandoned import end_abandoned_runs

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--work-pool", required=True)
    parser.add_argument("--mlflow-url", required=True)
    parser.add_argument("--worker-is-gone", action="store_true")
    parser.add_argument("--why", required=True)
    options = parser.parse_args()
    for sentence in set_aside_unreadable_records(options.home):
        sys.stdout.write(f"{sentence}\n")
    for name in end_dead_flow_runs(
        options.home,
        options.work_pool,
        worker_is_gone=options.worker_is_gone,
        why=options.why,
    ):
        sys.stdout.write(f"The run {name!r} no longer runs: Prefect says so now.\n")
    for name in end_abandoned_runs(options.mlflow_url, lambda run: is_over(options.home, run)):
        sys.stdout.write(f"The training run {name!r} no longer runs: MLflow says so now.\n")


if __name__ == "__main__":
    main()
