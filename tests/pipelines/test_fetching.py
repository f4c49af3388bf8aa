"""Shards of a remote store: each is fetched once, when an example of it is first read."""

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipelines.stages.examples.batches import ExampleReader, micro_batches
from pipelines.store import Artifact
from pipelines.store.artifact import LocalCache


def test_an_error_is_raised_where_the_shard_is_asked_for_and_not_kept(
    small_examples: Artifact, remote_examples: Artifact, monkeypatch
):
    fetch = LocalCache.fetch
    is_away = True

    def fetched(self, filesystem, path, record, name):
        if is_away and "train-" in path:
            raise OSError("nobody answers")
        return fetch(self, filesystem, path, record, name)

    monkeypatch.setattr(LocalCache, "fetch", fetched)
    reader, local = ExampleReader(remote_examples, "train"), ExampleReader(small_examples, "train")
    with pytest.raises(OSError, match="nobody answers"):
        read(reader, 0)
    is_away = False
    assert np.array_equal(read(reader, 0), read(local, 0))


@pytest.fixture
def remote_examples(small_examples: Artifact, tmp_path, monkeypatch) -> Artifact:
    """The same artifact on a store that is no folder of this machine."""
    monkeypatch.setenv("BERTSMITH_CACHE", str(tmp_path / "cache"))
    remote = MemoryFileSystem()
    root = f"/{tmp_path.name}"
    for name in small_examples.names():
        remote.pipe_file(f"{root}/{name}", small_examples.local(name).read_bytes())
    return Artifact(small_examples.manifest, root, remote)


def read(reader: ExampleReader, step: int) -> np.ndarray:
    batches = micro_batches(reader, seed=0, step=step, global_batch_size=4, micro_batch_size=4)
    return np.concatenate([batch.tokens.input_ids.numpy() for _, batch in batches])


def test_every_shard_is_fetched_once_when_it_is_first_read(
    small_examples: Artifact, remote_examples: Artifact, monkeypatch
):
    fetched: list[str] = []
    get_file = MemoryFileSystem.get_file

    def counted(self, path, target, **options):
        fetched.append(path.rpartition("/")[2])
        get_file(self, path, target, **options)

    monkeypatch.setattr(MemoryFileSystem, "get_file", counted)
    reader, local = ExampleReader(remote_examples, "train"), ExampleReader(small_examples, "train")
    assert not [name for name in fetched if name.startswith("train-")]
    for step in range(10):
        assert np.array_equal(read(reader, step), read(local, step))
    assert len(fetched) == len(set(fetched)) > 4
