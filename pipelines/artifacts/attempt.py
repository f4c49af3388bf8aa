"""An attempt at an artifact: a draft that no other builder writes to."""

import json
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from pipelines.artifacts.access import write_to_disk
from pipelines.artifacts.claims import LEASE_SECONDS, attempts, claimed, is_abandoned
from pipelines.artifacts.code import CODE_NAME, Code, code_in, difference
from pipelines.artifacts.draft import Draft, remove_partial_files
from pipelines.artifacts.manifest import (
    INPUTS_NAME,
    ArtifactPaths,
    DamagedManifestError,
    read_manifest,
)
from pipelines.config.errors import UserError

logger = logging.getLogger(__name__)


def attempt(
    paths: ArtifactPaths, code: Code, lease_seconds: float = LEASE_SECONDS
) -> AbstractContextManager[Draft]:
    """The draft of an attempt at the artifact of `paths`, for this process alone.

    On a local store builders take turns. On an object store a second builder makes an attempt of
    its own while the first is alive. Either way an interrupted attempt continues if it was made
    with the same `code`; what other code left is kept aside for `bertsmith prune`.
    """
    return _local(paths, code) if paths.is_local else _remote(paths, code, lease_seconds)


@contextmanager
def _local(paths: ArtifactPaths, code: Code) -> Iterator[Draft]:
    folder = Path(paths.kind_folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the store cannot be written: {folder} cannot be made ({error.strerror}); choose "
            "another store"
        ) from error
    lock = FileLock(paths.lock)
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        logger.warning("another process is building %s/%s: waiting", paths.kind, paths.fingerprint)
        held = lock.acquire()
    with held:
        _set_aside_what_is_no_artifact(paths)
        _set_aside_what_other_code_made(paths, code)
        draft = Path(paths.draft)
        if draft.is_dir():
            remove_partial_files(draft)
        draft.mkdir(exist_ok=True)
        yield Draft(
            fingerprint=paths.fingerprint,
            filesystem=paths.filesystem,
            root=paths.draft,
            work=paths.work,
        )


@contextmanager
def _remote(paths: ArtifactPaths, code: Code, lease_seconds: float) -> Iterator[Draft]:
    with claimed(paths.filesystem, paths.work, lease_seconds, code) as claim:
        yield Draft(
            fingerprint=paths.fingerprint,
            filesystem=paths.filesystem,
            root=f"{paths.root}/{claim.attempt}",
            work=claim.folder,
            claim=claim,
        )


@contextmanager
def unless_building(paths: ArtifactPaths, lease_seconds: float) -> Iterator[bool]:
    """Whether no process builds the artifact of `paths`; no local builder starts in the block.

    On an object store a builder may start at any time, in a new attempt of its own.
    """
    if not paths.is_local:
        folders = attempts(paths.filesystem, paths.work)
        yield all(is_abandoned(paths.filesystem, each, lease_seconds) for each in folders)
        return
    try:
        held = FileLock(paths.lock).acquire(timeout=0)
    except Timeout:
        yield False
        return
    with held:
        yield True


def _set_aside_what_is_no_artifact(paths: ArtifactPaths) -> None:
    """Move away a folder without a readable manifest from the artifact's place.

    A crash of the machine can leave one, and it would prevent the rename.
    """
    root = Path(paths.root)
    if not root.exists():
        return
    try:
        read_manifest(Path(paths.manifest).read_bytes(), paths)
        return
    except (FileNotFoundError, NotADirectoryError):
        reason = "has no manifest"
    except DamagedManifestError:
        reason = "has a damaged manifest"
    aside = _aside(paths)
    root.rename(aside)
    logger.warning(
        "%s %s: set aside as %s, and the artifact is rebuilt (`bertsmith prune` removes it)",
        root,
        reason,
        aside.name,
    )


def _set_aside_what_other_code_made(paths: ArtifactPaths, code: Code) -> None:
    """Move away an interrupted attempt of other code: one artifact is made with one code."""
    work, draft = Path(paths.work), Path(paths.draft)
    before = code_in(paths.filesystem, paths.work)
    if before == code:
        return
    ours = (work / CODE_NAME, work / INPUTS_NAME)
    if any(path.is_file() and path not in ours for path in (*work.rglob("*"), *draft.rglob("*"))):
        aside = _aside(paths)
        work.mkdir(exist_ok=True)
        work.rename(aside)
        if draft.exists():
            draft.rename(aside / "draft")
        logger.warning(
            "the code has changed since this attempt at %s/%s began (%s): it starts over; what "
            "there was is set aside as %s, and `bertsmith prune` removes it",
            paths.kind,
            paths.fingerprint,
            difference(before, code),
            aside,
        )
    work.mkdir(exist_ok=True)
    write_to_disk(work / CODE_NAME, json.dumps(code))


def _aside(paths: ArtifactPaths) -> Path:
    """A new path for something of this artifact that no builder uses."""
    moment = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
    return Path(paths.kind_folder) / f".aside-{paths.fingerprint}-{moment}"
