"""What people get wrong: each mistake is answered at once, in one clear sentence.

A case is a name, what sets the mistake up and makes it, and words that its sentence must hold.
Add a case for every mistake that came up.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.errors import UserError
from pipelines.store import Artifact, ArtifactStore, Built, Draft

Mistake = Callable[[Path, pytest.MonkeyPatch], object]


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
    "cache bound with a unit": (_cache_bound("50 GiB"), "=50 GiB is not a number of bytes"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_answered_in_one_sentence(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTSMITH_CACHE", str(tmp_path / "cache"))
    make, words = CASES[case]
    with pytest.raises(UserError, match=words) as raised:
        make(tmp_path, monkeypatch)
    assert "\n" not in str(raised.value)
