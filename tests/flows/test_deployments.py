"""A deployment's own recipe stands where a run is given less."""

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import FlowRun

from flows.end_to_end import end_to_end

pytestmark = pytest.mark.slow

SECRET = "hidden-word"


def run_of_deployment(name: str, own: dict[str, Any], given: dict[str, Any]) -> FlowRun:
    """Run a deployment whose recipe is `own` with the parameters `given`, up to the corpus."""
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(
            flow_id=client.create_flow(end_to_end),
            name=name,
            parameters={"recipe": own, "until": "corpus"},
            entrypoint="flows.end_to_end.end_to_end",
            path=str(Path(__file__).parents[2]),
            parameter_openapi_schema=_schema(end_to_end),
        )
        run = client.create_flow_run_from_deployment(deployment, parameters=given)
        subprocess.run(
            [sys.executable, "-m", "prefect", "flow-run", "execute", str(run.id)],
            env=dict(os.environ),
            capture_output=True,
            check=False,
        )
        return client.read_flow_run(run.id)


def _schema(flow: Any) -> dict[str, Any]:
    from prefect.utilities.callables import parameter_schema

    return parameter_schema(flow.fn).model_dump_for_openapi()


def said(run_id: UUID) -> str:
    with get_client(sync_client=True) as client:
        logs = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run_id])))
    return "\n".join(log.message for log in logs)


@pytest.fixture
def own_recipe(small_recipe: Path, tmp_path: Path) -> dict[str, Any]:
    values = yaml.safe_load(small_recipe.read_text())
    return {"name": "ours", "corpus": values["corpus"], "runtime": {"home": str(tmp_path / "home")}}


def test_what_a_run_is_not_given_comes_from_the_deployments_own_recipe(
    prefect_api: str, own_recipe: dict[str, Any]
) -> None:
    run = run_of_deployment(
        "partial",
        own_recipe,
        {
            "recipe": {"corpus": {"heldout_fraction": 0.2}},
            "overrides": ["corpus.cleaning.min_characters=30"],
        },
    )
    log = said(run.id)
    assert run.state is not None
    assert run.state.is_completed(), log
    assert "corpus.heldout_fraction is 0.2, in the deployment's own recipe it is 0.05" in log
    assert "corpus.cleaning.min_characters is 30" in log
    assert "packages" not in log  # which are the deployment's own


@pytest.fixture
def signed_texts() -> Iterator[str]:
    """The URL of a text that a server hands out to who has the signature, and to nobody else."""
    text = "\n".join(
        f"Paragraph {number} tells of {number} things that happened in the town.\n"
        for number in range(200)
    ).encode()

    class Signed(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if f"X-Amz-Signature={SECRET}" not in self.path:
                self.send_error(403)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(text)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Signed) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/a.txt?X-Amz-Signature={SECRET}"
        server.shutdown()
        thread.join()


def test_a_deployment_reads_a_signed_address_and_writes_no_signature(
    prefect_api: str, own_recipe: dict[str, Any], signed_texts: str
) -> None:
    own = own_recipe | {"corpus": {"sources": [{"kind": "text", "paths": [signed_texts]}]}}
    run = run_of_deployment("signed", own, {"recipe": {"corpus": {"heldout_fraction": 0.2}}})
    log = said(run.id)
    assert run.state is not None
    assert run.state.is_completed(), log
    assert SECRET not in log


def test_values_that_do_not_go_together_fail_before_anything_is_built(
    prefect_api: str, own_recipe: dict[str, Any], tmp_path: Path
) -> None:
    run = run_of_deployment(
        "wrong", own_recipe, {"recipe": {"corpus": {"cleaning": {"max_characters": 3}}}}
    )
    assert run.state is not None
    assert "is less than min_characters" in (run.state.message or "")
    assert not (tmp_path / "home" / "store").exists()
