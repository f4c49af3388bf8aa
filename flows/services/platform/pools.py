"""Work pools: made where they are missing, never changed."""

from copy import deepcopy
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectNotFound
from prefect.workers.process import ProcessWorker

from flows.services.platform.declaration import WorkPool

PROCESS = "process"


def make_pool(client: SyncPrefectClient, pool: WorkPool, kind: str = PROCESS) -> bool:
    """Make the pool where it is missing; whether it was.

    Of the kind `process` its workers start each run beside themselves; pools of other kinds are
    made with their base job template, which is the operator's: see docs/operations.md.
    """
    try:
        client.read_work_pool(pool.name)
    except ObjectNotFound:
        template = _process_template() if kind == PROCESS else {}
        client.create_work_pool(
            WorkPoolCreate(
                name=pool.name,
                description=pool.description or None,
                type=kind,
                base_job_template=template,
                concurrency_limit=pool.concurrency_limit,
            )
        )
        return True
    return False


def _process_template() -> dict[str, Any]:
    """Prefect's own, whose runs also wait for a server whose database restarts.

    It answers 500 then, which its clients take for a mistake unless they are told.
    """
    template = deepcopy(ProcessWorker.get_default_base_job_template())
    template["variables"]["properties"]["env"]["default"] = {
        "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500"
    }
    return template
