"""Flow runs that a worker has taken, and that are begun as it begins them."""

import os
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.states import Pending

from flows.services.deployments import Source
from tests.delivery.declared import ROOT

COMMAND = ["prefect", "flow-run", "execute"]  # what a Job of the work pool runs


def taken_run(entrypoint: str, source: Source, **parameters: Any) -> UUID:
    """A run of a new deployment of this flow; its process is what is missing."""
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(
            flow_id=client.create_flow_from_name(entrypoint.rpartition(".")[2]),
            name=entrypoint,
            entrypoint=entrypoint,
            pull_steps=source.pull_steps,
            tags=["bertsmith"],
        )
        run = client.create_flow_run_from_deployment(deployment, parameters=parameters)
        client.set_flow_run_state(run.id, Pending())
    return run.id


def environment(run: UUID, *modules: Path) -> dict[str, str]:
    """Of the process of a run, which finds modules in these folders."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, (*modules, ROOT))),
        "PREFECT__FLOW_RUN_ID": str(run),
    }
