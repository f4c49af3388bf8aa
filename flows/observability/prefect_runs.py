"""How many runs wait and how many ended how, as Prefect's server counts them."""

from collections import Counter
from datetime import UTC, datetime
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType

_WAITING = (StateType.SCHEDULED, StateType.PENDING)
_PAGE = 200


def queued_runs() -> dict[str, int]:
    """Runs whose time has come and that have not begun, by the name of their deployment."""
    with get_client(sync_client=True) as client:
        names = {each.id: each.name for each in client.read_deployments()}
        due: Counter[UUID | None] = Counter()
        offset = 0
        while True:
            page = client.read_flow_runs(
                flow_run_filter=_waiting_until(datetime.now(UTC)), limit=_PAGE, offset=offset
            )
            due.update(run.deployment_id for run in page if _is_due(run))
            offset += len(page)
            if len(page) < _PAGE:
                break
    counts = {name: due.get(identity, 0) for identity, name in names.items()}
    others = sum(count for identity, count in due.items() if identity not in names)
    return counts | ({"none": others} if others else {})


def runs_by_state() -> dict[str, int]:
    """How many runs the server keeps in each type of state."""
    with get_client(sync_client=True) as client:
        return {
            state.value.lower(): client.count_flow_runs(
                flow_run_filter=FlowRunFilter.model_validate({"state": {"type": {"any_": [state]}}})
            )
            for state in StateType
        }


def _waiting_until(now: datetime) -> FlowRunFilter:
    return FlowRunFilter.model_validate(
        {"state": {"type": {"any_": list(_WAITING)}}, "expected_start_time": {"before_": now}}
    )


def _is_due(run: FlowRun) -> bool:
    return run.state is None or run.state.name != "Paused"
