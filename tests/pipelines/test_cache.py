"""The local cache of remote files: shared by processes, bounded, verified whatever happens."""

import hashlib
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from pipelines.errors import UserError
from pipelines.store.artifact import FileRecord, LocalCache


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BERTSMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BERTSMITH_CACHE_BYTES", "2500")
    return tmp_path / "cache"


def _remote(name: str, data: bytes) -> tuple[MemoryFileSystem, str, FileRecord]:
    remote = MemoryFileSystem()
    remote.pipe_file(f"/cache-test/{name}", data)
    record = FileRecord(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    return remote, f"/cache-test/{name}", record


def _fetch(remote: AbstractFileSystem, path: str, record: FileRecord) -> Path:
    return LocalCache().fetch(remote, path, record, f"artifact/{record.sha256}")


def test_a_file_that_was_evicted_and_fetched_again_is_verified_again(folder: Path) -> None:
    remote, path, record = _remote("again", b"right")
    _fetch(remote, path, record).unlink()
    remote.pipe_file(path, b"wrong")
    with pytest.raises(
        UserError,
        match=r"memory://.*again is missing, or not the file that its manifest names \(5 bytes",
    ):
        _fetch(remote, path, record)
    assert not list((folder / "files" / "artifact").iterdir())


def test_a_cached_copy_that_was_damaged_is_fetched_anew(folder: Path) -> None:
    remote, path, record = _remote("damaged", b"right")
    cached = _fetch(remote, path, record)
    cached.write_bytes(b"wrong")
    assert _fetch(remote, path, record).read_bytes() == b"right"


def test_what_a_killed_download_left_is_written_over(folder: Path) -> None:
    remote, path, record = _remote("killed", b"right")
    partials = folder / "partial"
    partials.mkdir(parents=True)
    (partials / record.sha256).write_bytes(b"more than is right")
    assert _fetch(remote, path, record).read_bytes() == b"right"
    assert not list(partials.iterdir())


def test_what_was_just_given_to_a_reader_is_not_taken_from_it(folder: Path) -> None:
    remote, path, record = _remote("theirs", b"t" * 1000)
    theirs = _fetch(remote, path, record)
    for index in range(4):
        _fetch(*_remote(f"ours-{index}", bytes([index]) * 1000))
    assert theirs.exists()
    for cached in (folder / "files" / "artifact").iterdir():
        os.utime(cached, (time.time() - 120, cached.stat().st_mtime))
    _fetch(*_remote("ours-4", b"\4" * 1000))
    assert not theirs.exists()
    assert sum(path.stat().st_size for path in (folder / "files" / "artifact").iterdir()) <= 2500


def test_two_processes_fill_one_cache_that_holds_half_of_it(folder: Path, tmp_path: Path) -> None:
    program = """
import hashlib, sys
from pathlib import Path
from fsspec.implementations.local import LocalFileSystem
from pipelines.store.artifact import FileRecord, LocalCache
for turn in range(3):
    for path in sorted(Path(sys.argv[1]).iterdir()):
        data = path.read_bytes()
        record = FileRecord(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        cached = LocalCache().fetch(LocalFileSystem(), str(path), record, path.name)
        assert cached.read_bytes() == data
"""
    source = tmp_path / "source"
    source.mkdir()
    for index in range(20):
        (source / f"{index}").write_bytes(bytes([index]) * 250)
    processes = [subprocess.Popen([sys.executable, "-c", program, str(source)]) for _ in range(2)]
    assert [process.wait(timeout=400) for process in processes] == [0, 0]
    assert not list((folder / "partial").iterdir())


class Slow(LocalFileSystem):
    """Notes what is fetched from it, which takes a moment."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []

    def get_file(self, path: str, target: str, **options) -> None:
        self.fetched.append(path)
        time.sleep(0.5)
        super().get_file(path, target, **options)


def test_two_ranks_of_a_node_download_a_file_once(folder: Path, tmp_path: Path) -> None:
    source, remote = tmp_path / "remote", Slow()
    source.write_bytes(b"right")
    record = FileRecord(bytes=5, sha256=hashlib.sha256(b"right").hexdigest())
    with ThreadPoolExecutor() as ranks:
        copies = [ranks.submit(_fetch, remote, str(source), record) for _ in range(2)]
    assert [copy.result().read_bytes() for copy in copies] == [b"right", b"right"]
    assert remote.fetched == [str(source)]
