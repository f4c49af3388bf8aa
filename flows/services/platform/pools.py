"""Work pools: made where they are missing, never changed."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectNotFound
from prefect.workers.process import ProcessWorker

from flows.services.platform.declaration import WorkPool
from pipelines.core.errors import UserError

PROCESS = "process"


def read_template(path: Path, image: str) -> dict[str, Any]:
    """The base job template in a JSON file, whose runs start in `image` where it leaves one open.

    Raises UserError where it is none.
    """
    try:
        template: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        variables = template["variables"]["properties"]
        if template.keys() != {"variables", "job_configuration"}:
            raise KeyError("job_configuration")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} must be the base job template of a work pool, with variables and "
            f"job_configuration, but it cannot be read as one ({error!r}); `prefect work-pool "
            "get-default-base-job-template --type kubernetes` shows one"
        ) from error
    if image and "image" in variables:
        variables["image"].setdefault("default", image)
    return template


def make_pool(
    client: SyncPrefectClient,
    pool: WorkPool,
    kind: str = PROCESS,
    template: dict[str, Any] | None = None,
) -> bool:
    """Make the pool where it is missing; whether it was.

    Of the kind `process` its workers start each run beside themselves; pools of other kinds get the
    base job template that is given, or the operator gives them one: see docs/deploying.md.
    """
    try:
        client.read_work_pool(pool.name)
    except ObjectNotFound:
        if template is None:
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
