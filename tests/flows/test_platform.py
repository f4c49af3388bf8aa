"""What `deploy` sets up on a team's Prefect server: applied twice it is the same."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound

from flows.cli.app import MISTAKE, run
from flows.cli.commands import platform as platform_commands
from flows.services.deployments import Source, declared_file
from flows.services.platform import WorkPool, apply, make_pool, read_platform
from flows.services.runtime_block import (
    BertsmithRuntime,
    read_runtime,
    save_runtime,
)
from pipelines.config.errors import UserError
from tests.delivery.composition import COMPOSE, read
from tests.flows.chat_room import SECRET
from tests.flows.person import wait_until

pytestmark = pytest.mark.slow

_ENVIRONMENT = {
    "BERTSMITH_STORE": "s3://bucket/store",
    "MLFLOW_TRACKING_URI": "http://mlflow:5000",
    "MLFLOW_TRACKING_USERNAME": "bertsmith",
    "MLFLOW_TRACKING_PASSWORD": SECRET,
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": SECRET,
}


def state() -> dict[str, Any]:
    """Everything that was declared, as the server tells it, without the dates of last looks."""
    later = {"updated", "last_polled", "status"}
    with get_client(sync_client=True) as client:
        told: dict[str, Any] = {
            "pools": client.read_work_pools(),
            "deployments": client.read_deployments(),
            "automations": client.read_automations(),
            "blocks": [
                document
                for document in client.read_block_documents(include_secrets=False)
                if document.block_type_name != "Secret"
            ],
        }
    return {
        kind: sorted(
            json.dumps(each.model_dump(mode="json", exclude=later), sort_keys=True)
            for each in found
        )
        for kind, found in told.items()
    }


def test_it_is_applied_twice_and_is_the_same_and_no_secret_shows(
    prefect_api: str, webhook: list[dict[str, Any]]
) -> None:
    platform = read_platform()
    apply(platform, Source.installed(), _ENVIRONMENT)
    once = state()
    assert SECRET not in json.dumps(once)
    declared = yaml.safe_load(declared_file("prefect.yaml").read_text())["deployments"]
    assert len(once["deployments"]) >= len(declared)
    said = apply(platform, Source.installed(), _ENVIRONMENT)
    assert state() == once
    assert not [sentence for sentence in said if "is new" in sentence]
    assert SECRET not in " ".join(said)
    with get_client(sync_client=True) as client:
        pools = {each.name: each for each in client.read_work_pools()}
        assert pools["bertsmith-training"].concurrency_limit == 1
        found = client.read_deployment_by_name("corpus/corpus")
        assert found.work_pool_name == "bertsmith-data"

        # What a person changed stays.
        from prefect.client.schemas.actions import WorkPoolUpdate

        client.update_work_pool("bertsmith-data", WorkPoolUpdate(concurrency_limit=9))
        apply(platform, Source.installed(), {})
        assert client.read_work_pool("bertsmith-data").concurrency_limit == 9


def test_where_the_code_comes_from_stays_unless_it_is_named(prefect_api: str) -> None:
    def source_of_corpus() -> tuple[Any, Any]:
        with get_client(sync_client=True) as client:
            found = client.read_deployment_by_name("corpus/corpus")
        return found.pull_steps, found.job_variables.get("image")

    platform = read_platform()
    git, image = Source.git("https://example.org/x", "v1"), Source.image("registry/bertsmith:1")
    apply(platform, git, {})
    apply(platform, None, {})
    assert source_of_corpus()[0] == git.pull_steps
    apply(platform, image, {})
    apply(platform, None, {})
    assert source_of_corpus() == ([], "registry/bertsmith:1")
    apply(platform, Source.installed(), {})
    assert source_of_corpus() == ([], None)
    apply(platform, git, {})
    apply(platform, Source.installed(), {})
    assert source_of_corpus()[0] == []


def test_each_declared_deployment_has_a_pool() -> None:
    platform = read_platform()
    for declared in yaml.safe_load(declared_file("prefect.yaml").read_text())["deployments"]:
        assert platform.pool_of(declared["tags"]) in {pool.name for pool in platform.work_pools}


def test_what_is_not_given_again_stays_in_the_block(prefect_api: str) -> None:
    save_runtime(_ENVIRONMENT)
    save_runtime({"AWS_SECRET_ACCESS_KEY": "another"})  # a rotation
    block = read_runtime()
    assert isinstance(block, BertsmithRuntime)
    variables = block.variables()
    assert variables["AWS_SECRET_ACCESS_KEY"] == "another"
    assert variables["MLFLOW_TRACKING_PASSWORD"] == SECRET
    assert "another" not in repr(block)
    assert not save_runtime({})


def test_a_block_that_is_named_and_missing_is_a_mistake(
    prefect_api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTSMITH_RUNTIME", "stagin")
    with pytest.raises(UserError, match=r"there is no Prefect block bertsmith-runtime/stagin"):
        read_runtime()
    save_runtime({**_ENVIRONMENT, "BERTSMITH_RUNTIME": "stagin"})
    assert read_runtime() is not None


@pytest.mark.parametrize("options", [("--reference", "v2"), ("--token-block", "b")])
def test_what_belongs_to_git_needs_it(
    options: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["deploy", *options]) == MISTAKE
    assert "--reference and --token-block belong to --git; add it" in capsys.readouterr().err


def test_the_team_s_server_is_named_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not by the servers of `bertsmith up` in this folder."""
    monkeypatch.setenv("BERTSMITH_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)

    def as_up_does(home: Path) -> None:
        monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")

    monkeypatch.setattr(platform_commands, "set_defaults", as_up_does)
    assert run(["deploy"]) == MISTAKE
    assert "PREFECT_API_URL is not set" in capsys.readouterr().err
    assert run(["deploy"]) == MISTAKE
    assert "http://127.0.0.1:9/api does not answer (ConnectError)" in capsys.readouterr().err


def test_code_from_an_image_and_from_git() -> None:
    assert Source.image("registry/bertsmith:1").job_variables == {"image": "registry/bertsmith:1"}
    (step,) = Source.git("https://example.org/x", "v1", "token").pull_steps
    (values,) = step.values()
    assert values["access_token"] == "{{ prefect.blocks.secret.token }}"
    assert values["branch"] == "v1"


def test_a_worker_that_is_ahead_waits_for_its_pool(prefect_api: str, tmp_path: Path) -> None:
    name = "of-an-early-worker"
    command = read(COMPOSE)["services"]["worker-data"]["command"]
    words = [name if word == "bertsmith-data" else word for word in command]
    worker = subprocess.Popen(
        [sys.executable, "-m", *(word for word in words if word != "--with-healthcheck")],
        env={**os.environ, "PREFECT_WORKER_HEARTBEAT_SECONDS": "1",
             "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO"}, cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        # It stops itself with SIGINT, which tests that run in the background ignore.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        assert worker.stdout is not None
        next(line for line in worker.stdout if "not found" in line)
        with get_client(sync_client=True) as client:
            with pytest.raises(ObjectNotFound):
                client.read_work_pool(name)
            assert make_pool(client, WorkPool(name=name, tags=("data",), concurrency_limit=1))
            wait_until(lambda: bool(client.read_workers_for_work_pool(name)))
    finally:
        worker.terminate()
        worker.communicate(timeout=300)
