"""What people get wrong with a store: each mistake is answered at once, in one clear sentence.

A case is a name, what makes the mistake, and words that its sentence must hold. Add a case for
every mistake that came up.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import UserError
from pipelines.store import Artifact, ArtifactStore, Built, Draft


def _write(draft: Draft) -> Built:
    with draft.file("a.txt") as file:
        file.path.write_text("contents")
    return Built(["a.txt"], {})


def _build(store: ArtifactStore, **settings: Any) -> Artifact:
    return store.get_or_build("thing", version=1, settings=settings, inputs={}, build=_write)


def _foreign_manifest(folder: Path) -> object:
    store = ArtifactStore(folder)
    other = _build(store, other=True)
    root = Path(_build(store).root)
    shutil.rmtree(root)
    shutil.copytree(other.root, root)
    return _build(store)


def _damaged_manifest_on_an_object_store(folder: Path) -> object:
    store = ArtifactStore(f"memory://{folder.name}/damaged")
    store.filesystem.pipe_file(f"{_build(store).root}/manifest.json", b"")
    return _build(store)


def _changed(folder: Path, **changes: Any) -> object:
    store = ArtifactStore(folder)
    path = Path(_build(store).root, "manifest.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return _build(store)


def _with_file(folder: Path, name: str = "a.txt", **changes: Any) -> object:
    record = _build(ArtifactStore(folder)).manifest.files["a.txt"].model_dump()
    return _changed(folder, files={name: record | changes})


def _store_in_a_file(folder: Path) -> object:
    (folder / "file").write_text("not a folder")
    return ArtifactStore(folder / "file" / "deeper")


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "foreign manifest": (_foreign_manifest, r"is the manifest of another artifact"),
    "empty manifest on an object store": (
        _damaged_manifest_on_an_object_store,
        r"manifest\.json is not a valid manifest \(0 bytes; .* run again",
    ),
    "manifest of a newer version": (
        lambda folder: _changed(folder, colour="blue"),
        r"is not a valid manifest \(.* bytes; colour: .* update, or remove",
    ),
    "file outside its folder": (
        lambda folder: _with_file(folder, "../../x"), "must be relative, .*'../../x'",
    ),
    "file that is the manifest": (
        lambda folder: _with_file(folder, "manifest.json"), "must be relative, .*'manifest.json'",
    ),
    "checksum that is a path": (
        lambda folder: _with_file(folder, sha256="../" * 21 + "x"), "not a valid manifest .*sha256",
    ),
    "store of an unknown protocol": (
        lambda _: ArtifactStore("qq://bucket/x"), "qq:.*neither a folder nor a URL",
    ),
    "store without its bucket": (lambda _: ArtifactStore("s3://"), "names no bucket"),
    "store that is a file": (_store_in_a_file, "cannot be written: .* is a file; choose another"),
    "cache bound with a unit": (
        lambda folder: _build(ArtifactStore(f"memory://{folder.name}/bound")).local("a.txt"),
        "=50 GiB is not a number of bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_answered_in_one_sentence(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTSMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BERTSMITH_CACHE_BYTES", "50 GiB")
    make, words = CASES[case]
    with pytest.raises(UserError, match=words) as raised:
        make(tmp_path)
    assert "\n" not in str(raised.value)
