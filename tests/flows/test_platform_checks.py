"""What `bertsmith doctor --platform` finds, and what it says to do."""

import json
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows.services.doctor_servers import check_pools, check_prefect, check_secrets, check_store
from flows.services.health import free_port
from flows.services.platform import Platform, WorkPool, make_pool, read_template
from flows.services.runtime_block import VARIABLE, save_runtime
from pipelines.artifacts import access
from pipelines.config.errors import UserError
from tests.integration.object_stores import BUCKET, s3_server


def test_a_prefect_server_answers_lets_in_and_is_of_this_version(prefect_api: str) -> None:
    assert check_prefect().state == "ok"
    with temporary_settings({PREFECT_API_AUTH_STRING: "bertsmith:wrong"}):
        found = check_prefect()
    assert (found.state, "rejects the name and password" in found.finding) == ("fail", True)
    assert "PREFECT_API_AUTH_STRING" in found.advice
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{free_port()}/api"}):
        found = check_prefect()
    assert (found.state, "does not answer" in found.finding) == ("fail", True)


def test_no_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert check_prefect().state == "fail"


def test_a_pool_must_be_there_and_have_a_worker_that_lives(prefect_api: str) -> None:
    pool = WorkPool(name="of-a-doctor", tags=("data",), concurrency_limit=3)
    platform = Platform(work_pools=(pool,))
    (missing,) = check_pools(platform)
    assert (missing.state, missing.advice) == ("fail", "create it: bertsmith deploy")
    with get_client(sync_client=True) as client:
        assert make_pool(client, pool)
        (idle,) = check_pools(platform)
        assert idle.advice == "start one: prefect worker start --pool of-a-doctor"
        client.request(
            "POST", "/work_pools/{work_pool_name}/workers/heartbeat",
            path_params={"work_pool_name": pool.name}, json={"name": "here"},
        )  # fmt: skip
    (alive,) = check_pools(platform)
    assert (alive.state, alive.finding) == ("ok", "of-a-doctor: here; 3 runs at once")


def test_a_pool_of_containers_is_made_with_the_template_that_is_given(
    prefect_api: str, tmp_path: Path
) -> None:
    path = tmp_path / "template.json"
    template = {
        "variables": {"type": "object", "properties": {"image": {"type": "string"}}},
        "job_configuration": {"image": "{{ image }}"},
    }
    path.write_text(json.dumps(template))
    pool = WorkPool(name="of-containers", tags=("data",), concurrency_limit=2)
    with get_client(sync_client=True) as client:
        assert make_pool(client, pool, "docker", read_template(path, "own:1"))
        assert not make_pool(client, pool, "docker", read_template(path, "own:2"))
        found = client.read_work_pool(pool.name)
    assert (found.type, found.concurrency_limit) == ("docker", 2)
    assert found.base_job_template["variables"]["properties"]["image"]["default"] == "own:1"
    assert found.base_job_template["job_configuration"] == template["job_configuration"]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"variables": {"properties": {}}}', '{"variables": 1}']
)
def test_a_template_that_is_none_gets_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "template.json"
    path.write_text(text)
    with pytest.raises(UserError, match="is not the base job template"):
        read_template(path, "")


def test_secrets_are_named_and_never_shown(
    prefect_api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "of-a-doctor")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    place = {VARIABLE: "of-a-doctor", "BERTSMITH_STORE": "s3://bucket/store"}
    save_runtime(place)
    found = check_secrets()
    assert found.state == "warn"
    assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in found.finding
    save_runtime({**place, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "hidden-word"})
    found = check_secrets()
    assert found.state == "ok"
    assert "AWS_SECRET_ACCESS_KEY" in found.finding
    assert "hidden-word" not in found.finding


def test_a_store_must_create_a_thing_only_where_none_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(monkeypatch):
        assert check_store(f"s3://{BUCKET}/store").state == "ok"

        def overwriting(filesystem, path: str, data: bytes) -> bool:  # type: ignore[no-untyped-def]
            filesystem.pipe_file(path, data)
            return True

        monkeypatch.setattr(access, "create_only", overwriting)
        found = check_store(f"s3://{BUCKET}/store")
        assert (found.state, "no conditional writes" in found.finding) == ("warn", True)
