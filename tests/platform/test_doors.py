"""What a platform's servers answer to somebody without credentials, and where they listen."""

import os
import subprocess
import sys
import urllib.error
import urllib.request

import psutil
import pytest
from botocore.exceptions import ClientError

from benchmarks.stack.object_store import BUCKET
from tests.platform.whole import Platform

pytestmark = pytest.mark.platform


def status(url: str, method: str = "GET", body: bytes | None = None) -> int:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_stranger_reads_and_changes_nothing(platform: Platform) -> None:
    stack = platform.stack
    prefect, mlflow = f"{stack.prefect_url}/api", stack.mlflow_url
    for url in (f"{prefect}/health", f"{mlflow}/health", f"{mlflow}/version"):
        assert status(url) == 200
    for url in (
        f"{prefect}/metrics",
        f"{prefect}/flows/count",
        f"{mlflow}/api/2.0/mlflow/experiments/search?max_results=1",
        f"{mlflow}/api/2.0/mlflow-artifacts/artifacts",
    ):
        assert status(url) == 401, url
    assert status(f"{prefect}/work_pools/filter", "POST", b"{}") in (401, 403)
    assert status(f"{mlflow}/api/2.0/mlflow/registered-models/create", "POST", b"{}") == 401
    with pytest.raises(RuntimeError, match="password authentication failed"):
        stack.postgres.connect_with_wrong_password()


def test_the_store_asks_for_a_signature(platform: Platform) -> None:
    store = platform.stack.store
    if not store.is_ceph:
        pytest.skip("moto's server checks no signature")
    assert status(f"{store.url}/{BUCKET}") == 403
    assert status(f"{store.url}/{BUCKET}/mine", "PUT", b"x") == 403
    with pytest.raises(ClientError, match=r"SignatureDoesNotMatch|403"):
        store.client(secret_key="wrong").list_objects_v2(Bucket=BUCKET)


def test_a_key_is_rotated_while_the_other_one_works(platform: Platform) -> None:
    store = platform.stack.store
    if not store.is_ceph:
        pytest.skip("moto's server knows no keys")
    second = store.add_key()
    assert store.client(**second).list_objects_v2(Bucket=BUCKET)["KeyCount"] >= 0
    store.remove_key(second["access_key"])
    with pytest.raises(ClientError, match=r"InvalidAccessKeyId|403"):
        store.client(**second).list_objects_v2(Bucket=BUCKET)


def test_servers_listen_on_the_loopback_alone(platform: Platform) -> None:
    """Not Ray, which is why its nodes want a network of their own: docs/operations.md."""
    stack = platform.stack
    servers = [stack.postgres.server, stack.prefect, stack.mlflow, *stack.store.servers]
    for server in (*servers, *stack.workers):
        for process in server.processes():
            listening = [
                connection.laddr.ip
                for connection in process.net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            ]
            assert set(listening) <= {"127.0.0.1"}, server.name


def test_nobody_computes_without_the_token_of_ray(platform: Platform) -> None:
    said = subprocess.run(
        [sys.executable, "-c", "import ray, sys; ray.init(sys.argv[1])", platform.cluster.address],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "0" * 64,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert said.returncode
    assert "uthentica" in said.stderr, said.stderr
