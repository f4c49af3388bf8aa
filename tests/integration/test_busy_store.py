"""An object store that answers 503 for twenty seconds delays what is written, and loses nothing."""

import time
from collections.abc import Iterator

import pytest
from pyarrow.fs import PyFileSystem
from s3fs import S3FileSystem

from pipelines.errors import UserError
from pipelines.store import ArtifactStore, Built, Draft
from pipelines.tracking.tracker import is_transient
from pipelines.train.checkpoint import CheckpointFolder
from tests.integration.busy_stores import BusyStore, busy_store
from tests.integration.object_stores import BUCKET, s3_server

pytestmark = pytest.mark.slow

_BUSY_SECONDS = 20.0
_LARGE = b"0123456789abcdef" * (3 * 2**20)  # 48 MiB: two parts of a multipart upload


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[BusyStore]:
    with s3_server(monkeypatch) as environment, busy_store(environment["AWS_ENDPOINT_URL"]) as busy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", busy.url)
        S3FileSystem.clear_instance_cache()
        yield busy


def test_a_checkpoint_is_uploaded_when_the_store_answers_again(busy: BusyStore) -> None:
    """Through the file system that Ray Train writes with, in parts, in the middle of them."""
    store = ArtifactStore(f"s3://{BUCKET}/store")

    def build(draft: Draft) -> Built:
        checkpoints = CheckpointFolder.of(draft)
        assert isinstance(checkpoints.filesystem, PyFileSystem)
        name = f"{checkpoints.path}/checkpoint/model.safetensors"
        with checkpoints.filesystem.open_output_stream(name) as stream:
            stream.write(_LARGE[: 2**20])
            busy.be_busy(_BUSY_SECONDS)
            stream.write(_LARGE[2**20 :])
        with checkpoints.filesystem.open_input_stream(name) as stream:
            assert stream.read() == _LARGE
        return Built((), {})

    store.get_or_build("encoder", version=1, settings={}, inputs={}, build=build)
    assert busy.refused


def test_a_store_that_stays_busy_is_given_up_and_worth_another_try(busy: BusyStore) -> None:
    """As the first look does, before anything is built."""
    store = ArtifactStore(f"s3://{BUCKET}/store", is_patient=False)
    busy.be_busy(600)
    started = time.monotonic()
    with pytest.raises((UserError, OSError)) as told:
        store.find("encoder", "0" * 32)
    assert time.monotonic() - started < 300
    assert is_transient(told.value)
