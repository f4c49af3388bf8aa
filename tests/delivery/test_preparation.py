"""What the image does once: the buckets that are named."""

from collections.abc import Iterator

import boto3
import pytest
from s3fs import S3FileSystem

from flows.services.first_start import make_buckets
from pipelines.artifacts import ArtifactStore
from pipelines.config.errors import UserError
from tests.integration.object_stores import s3_server


def test_buckets_that_are_named_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(monkeypatch):
        monkeypatch.setenv("BERTSMITH_STORE", "s3://first/store")
        monkeypatch.setenv("MLFLOW_ARTIFACTS_DESTINATION", "s3://second/files")
        assert make_buckets() == ["first", "second"]
        assert make_buckets() == []
        names = {each["Name"] for each in boto3.client("s3").list_buckets()["Buckets"]}
        assert {"first", "second"} <= names
        assert ArtifactStore("s3://first/store").find("corpus", "0" * 32) is None


def test_places_that_are_no_buckets_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("BERTSMITH_STORE", f"{tmp_path}/store")
    monkeypatch.delenv("MLFLOW_ARTIFACTS_DESTINATION", raising=False)
    assert make_buckets() == []


@pytest.fixture
def fresh_s3() -> Iterator[None]:
    """s3fs keeps a connection for whoever asks the same; nobody else is to get this test's."""
    S3FileSystem.clear_instance_cache()
    yield
    S3FileSystem.clear_instance_cache()


@pytest.mark.usefixtures("fresh_s3")
def test_a_store_that_does_not_answer_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTSMITH_STORE", "s3://first/store")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(UserError, match="s3://first cannot be used"):
        make_buckets()
