"""What people get wrong: each mistake is answered at once, in one clear sentence.

A case is a name, what sets the mistake up and makes it, and words that its sentence must hold.
Add a case for every mistake that came up.
"""

import json
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.errors import UserError
from pipelines.store import Artifact, ArtifactStore, Built, Draft

Mistake = Callable[[Path, pytest.MonkeyPatch], object]
ANSWER_SECONDS = 200  # of a very busy machine; before it were minutes


def _write(draft: Draft) -> Built:
    with draft.file("a.txt") as file:
        file.path.write_text("contents")
    return Built(["a.txt"], {})


def _build(store: ArtifactStore, **settings) -> Artifact:
    return store.get_or_build("thing", version=1, settings=settings, inputs={}, build=_write)


def _with_manifest(change: Callable[[dict], dict]) -> Mistake:
    def make(folder: Path, monkeypatch: pytest.MonkeyPatch) -> object:
        store = ArtifactStore(folder)
        manifest = Path(_build(store).root, "manifest.json")
        manifest.write_text(json.dumps(change(json.loads(manifest.read_text()))))
        return _build(store)

    return make


def _foreign_manifest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    store = ArtifactStore(folder)
    other = _build(store, other=True)
    root = Path(_build(store).root)
    shutil.rmtree(root)
    shutil.copytree(other.root, root)
    return _build(store)


def _damaged_manifest_on_an_object_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    store = ArtifactStore(f"memory://{folder.name}/damaged")
    store.filesystem.pipe_file(f"{_build(store).root}/manifest.json", b"")
    return _build(store)


def _file_of(name: str) -> Callable[[dict], dict]:
    def change(manifest: dict) -> dict:
        return manifest | {"files": {name: manifest["files"]["a.txt"]}}

    return change


def _checksum(sha256: str) -> Callable[[dict], dict]:
    def change(manifest: dict) -> dict:
        return manifest | {"files": {"a.txt": manifest["files"]["a.txt"] | {"sha256": sha256}}}

    return change


def _store_is_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    (folder / "file").write_text("not a folder")
    return ArtifactStore(folder / "file" / "deeper")


def _s3_without_credentials(folder: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(folder / "none"))
    # A machine whose metadata service takes a call and never answers it.
    silent = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setenv(
        "AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}/"
    )
    threading.Thread(target=_accept_only, args=(silent,), daemon=True).start()
    _forget_clients()
    try:
        store = ArtifactStore("s3://bertsmith-nobody/store", is_patient=False)  # as a first look is
        return store.find("corpus", "0" * 32)
    finally:
        silent.close()
        _forget_clients()


def _s3_where_nobody_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    _forget_clients()
    try:
        store = ArtifactStore("s3://bertsmith-nobody/store", is_patient=False)  # as a first look is
        return store.find("corpus", "0" * 32)
    finally:
        _forget_clients()


def _accept_only(server: socket.socket) -> None:
    kept = []
    while True:
        try:
            kept.append(server.accept())
        except OSError:
            return


def _forget_clients() -> None:
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()


def _cache_bound(text: str) -> Mistake:
    def make(folder: Path, monkeypatch: pytest.MonkeyPatch) -> object:
        monkeypatch.setenv("BERTSMITH_CACHE_BYTES", text)
        return _build(ArtifactStore(f"memory://{folder.name}/bound")).local("a.txt")

    return make


def _name(name: str) -> Mistake:
    def make(folder: Path, monkeypatch: pytest.MonkeyPatch) -> object:
        return ArtifactStore(name)

    return make


CASES: dict[str, tuple[Mistake, str]] = {
    "foreign manifest": (_foreign_manifest, r"is the manifest of another artifact"),
    "empty manifest on an object store": (
        _damaged_manifest_on_an_object_store,
        r"manifest\.json is not a valid manifest \(0 bytes; .* run again",
    ),
    "manifest of a newer version": (
        _with_manifest(lambda manifest: manifest | {"colour": "blue"}),
        r"is not a valid manifest \(.* bytes; colour: .* update, or remove",
    ),
    "file outside its folder": (
        _with_manifest(_file_of("../../x")),
        "must be relative, .*'../../x'",
    ),
    "file that is the manifest": (
        _with_manifest(_file_of("manifest.json")),
        "must be relative, .*'manifest.json'",
    ),
    "checksum that is a path": (
        _with_manifest(_checksum("../" * 21 + "x")),
        "not a valid manifest .*sha256",
    ),
    "store of an unknown protocol": (_name("qq://bucket/x"), "qq:.*neither a folder nor a URL"),
    "store without its bucket": (_name("s3://"), "names no bucket"),
    "store that is a file": (_store_is_a_file, "cannot be written: .* is a file; choose another"),
    "S3 without credentials": (_s3_without_credentials, "no credentials .* AWS_ACCESS_KEY_ID"),
    "S3 where nobody answers": (_s3_where_nobody_answers, "no server answers .* AWS_ENDPOINT_URL"),
    "cache bound with a unit": (_cache_bound("50 GiB"), "=50 GiB is not a number of bytes"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_answered_in_one_sentence(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTSMITH_CACHE", str(tmp_path / "cache"))
    make, words = CASES[case]
    started = time.perf_counter()
    with pytest.raises(UserError, match=words) as raised:
        make(tmp_path, monkeypatch)
    assert time.perf_counter() - started < ANSWER_SECONDS
    assert "\n" not in str(raised.value)
