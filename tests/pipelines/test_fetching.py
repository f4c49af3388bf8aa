"""Shards of a remote store: fetched ahead, each once, and what is asked for now comes first."""

import gc
import threading
import time
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipelines.artifacts import Artifact
from pipelines.artifacts.cache import LocalCache
from pipelines.stages.examples.batches import micro_batches
from pipelines.stages.examples.reader import ExampleReader


def test_what_is_fetched_ahead_holds_up_nothing_that_is_asked_for_now(
    small_examples: Artifact, remote_examples: Artifact, monkeypatch
):
    fetch = LocalCache.fetch
    gate = threading.Event()

    def fetched(self, filesystem, path, record):
        if threading.current_thread().name == "fetch":
            gate.wait()
        return fetch(self, filesystem, path, record)

    monkeypatch.setattr(LocalCache, "fetch", fetched)
    reader, local = ExampleReader(remote_examples, "train"), ExampleReader(small_examples, "train")
    try:
        for step in range(3):
            assert np.array_equal(read(reader, step), read(local, step))
    finally:
        gate.set()


def test_an_error_is_raised_where_the_shard_is_asked_for_and_not_kept(
    small_examples: Artifact, remote_examples: Artifact, monkeypatch
):
    fetch = LocalCache.fetch
    is_away = True

    def fetched(self, filesystem, path, record):
        if is_away and "train-" in path:
            raise OSError("nobody answers")
        return fetch(self, filesystem, path, record)

    monkeypatch.setattr(LocalCache, "fetch", fetched)
    reader, local = ExampleReader(remote_examples, "train"), ExampleReader(small_examples, "train")
    with pytest.raises(OSError, match="nobody answers"):
        read(reader, 0)
    is_away = False
    assert np.array_equal(read(reader, 0), read(local, 0))


def test_threads_end_when_nothing_waits_and_hold_nothing(remote_examples: Artifact):
    reader = ExampleReader(remote_examples, "train")
    assert read(reader, 0).size
    wait_for_fetching()
    gone = weakref.ref(reader)
    del reader
    gc.collect()
    assert gone() is None


def test_a_shard_that_is_evicted_before_it_is_opened_is_fetched_again(
    small_examples: Artifact, remote_examples: Artifact, monkeypatch
):
    fetch = LocalCache.fetch
    evicted: set[str] = set()

    def fetched(self, filesystem, path, record):
        target = fetch(self, filesystem, path, record)
        if "train-" in path and path not in evicted:
            evicted.add(path)
            target.unlink()  # a thread that makes room for another file
        return target

    monkeypatch.setattr(LocalCache, "fetch", fetched)
    reader, local = ExampleReader(remote_examples, "train"), ExampleReader(small_examples, "train")
    assert np.array_equal(read(reader, 0), read(local, 0))
    assert evicted


@pytest.fixture
def remote_examples(small_examples: Artifact, tmp_path, monkeypatch) -> Iterator[Artifact]:
    """The same artifact on a store that is no folder of this machine.

    Threads that still fetch would take the cache of the next test for theirs, and fill it.
    """
    monkeypatch.setenv("BERTSMITH_CACHE", str(tmp_path / "cache"))
    remote = MemoryFileSystem()
    root = f"/{tmp_path.name}"
    for name in small_examples.names():
        remote.pipe_file(f"{root}/{name}", small_examples.local(name).read_bytes())
    yield Artifact(small_examples.manifest, root, remote)
    wait_for_fetching()


def wait_for_fetching() -> None:
    deadline = time.monotonic() + 240
    while any(thread.name == "fetch" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def read(reader: ExampleReader, step: int) -> np.ndarray:
    batches = micro_batches(reader, seed=0, step=step, global_batch_size=4, micro_batch_size=4)
    return np.concatenate([batch.tokens.input_ids.numpy() for _, batch in batches])


def test_one_read_has_the_whole_pass_fetched_each_shard_once(
    small_examples: Artifact, remote_examples: Artifact, monkeypatch
):
    fetched: list[str] = []
    get_file = MemoryFileSystem.get_file

    def counted(self, path, target, **options):
        fetched.append(path.rpartition("/")[2])
        get_file(self, path, target, **options)

    monkeypatch.setattr(MemoryFileSystem, "get_file", counted)
    reader = ExampleReader(remote_examples, "train", share=(1, 2))
    local = ExampleReader(small_examples, "train")
    assert np.array_equal(read(reader, 0), read(local, 0))
    shards = small_examples.names("train-")
    assert len(shards) > 4
    deadline = time.monotonic() + 240
    while not set(shards) <= set(fetched):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for step in range(1, 10):
        assert np.array_equal(read(reader, step), read(local, step))
    assert len(fetched) == len(set(fetched))


def test_a_pass_that_the_cache_cannot_hold_is_not_fetched_ahead(
    remote_examples: Artifact, monkeypatch, caplog
):
    ahead: list[object] = []
    monkeypatch.setattr(
        ExampleReader, "_open_until_empty", lambda _, waiting: ahead.append(waiting)
    )
    monkeypatch.setenv("BERTSMITH_CACHE_BYTES", "1000")
    reader = ExampleReader(remote_examples, "train")
    assert read(reader, 0).size
    assert "raise BERTSMITH_CACHE_BYTES" in caplog.text
    assert not ahead
