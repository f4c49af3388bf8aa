"""Work pools: made where they are missing, never changed."""

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
        template = ProcessWorker.get_default_base_job_template() if kind == PROCESS else {}
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
