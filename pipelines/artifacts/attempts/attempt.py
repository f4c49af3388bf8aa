"""An attempt at an artifact: a draft that no other builder writes to."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from pipelines.artifacts.attempts.claims import LEASE_SECONDS, attempts, claimed, is_abandoned
from pipelines.artifacts.attempts.code import CODE_NAME, Code, as_json, code_in, difference
from pipelines.artifacts.attempts.commit import write_to_disk
from pipelines.artifacts.draft import Draft, remove_partial_files
from pipelines.artifacts.layout import INPUTS_NAME, Place
from pipelines.artifacts.manifest import DamagedManifestError, read_manifest
from pipelines.core.errors import UserError

logger = logging.getLogger(__name__)


def attempt(
    place: Place, code: Code, lease_seconds: float = LEASE_SECONDS
) -> AbstractContextManager[Draft]:
    """The draft of an attempt at the artifact of `place`, for this process alone.

    On a local store builders take turns. On an object store a second one that comes while the
    first is alive makes an attempt of its own. Either way an interrupted attempt goes on where it
    was made with the same `code`; what another code left stays apart, for `bertsmith prune`.
    """
    return _local(place, code) if place.is_local else _remote(place, code, lease_seconds)


@contextmanager
def _local(place: Place, code: Code) -> Iterator[Draft]:
    folder = Path(place.kind_folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the store must be a folder that can be written, but {folder} cannot be made "
            f"({error.strerror}); choose another store"
        ) from error
    lock = FileLock(place.lock)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.warning("another process is building %s/%s: waiting", place.kind, place.fingerprint)
        lock.acquire()
    try:
        _set_aside_what_is_no_artifact(place)
        _set_aside_what_other_code_made(place, code)
        draft = Path(place.draft)
        if draft.is_dir():
            remove_partial_files(draft)
        draft.mkdir(exist_ok=True)
        yield Draft(
            fingerprint=place.fingerprint,
            filesystem=place.filesystem,
            root=place.draft,
            work=place.work,
            ledger=f"{place.work}/.ledger-of-draft",
        )
    finally:
        lock.release()


@contextmanager
def _remote(place: Place, code: Code, lease_seconds: float) -> Iterator[Draft]:
    with claimed(place.filesystem, place.work, lease_seconds, code) as claim:
        yield Draft(
            fingerprint=place.fingerprint,
            filesystem=place.filesystem,
            root=f"{place.root}/{claim.attempt}",
            work=claim.folder,
            ledger=f"{claim.folder}/.ledger-of-draft",
            claim=claim,
            by_content=True,
        )


@contextmanager
def left_alone(place: Place, lease_seconds: float = LEASE_SECONDS) -> Iterator[bool]:
    """Whether nobody builds the artifact of `place`; while this is held, no local builder starts.

    On an object store a builder may start at any time, in a new attempt of its own.
    """
    if not place.is_local:
        folders = attempts(place.filesystem, place.work)
        yield all(is_abandoned(place.filesystem, each, lease_seconds) for each in folders)
        return
    lock = FileLock(place.lock)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _set_aside_what_is_no_artifact(place: Place) -> None:
    """Move away what lies at the artifact's place without a readable manifest.

    A crash of the machine can leave that, or a hand. It would stand in the way of the rename.
    """
    root = Path(place.root)
    if not root.exists():
        return
    try:
        read_manifest(Path(place.manifest).read_bytes(), place)
        return
    except (FileNotFoundError, NotADirectoryError):
        reason = "has no manifest"
    except DamagedManifestError:
        reason = "has a damaged manifest"
    aside = _aside(place)
    root.rename(aside)
    logger.warning(
        "%s %s: set aside as %s, and the artifact is made anew (`bertsmith prune` removes it)",
        root,
        reason,
        aside.name,
    )


def _set_aside_what_other_code_made(place: Place, code: Code) -> None:
    """Move away an interrupted attempt that another code began: one artifact is made with one."""
    work, draft = Path(place.work), Path(place.draft)
    before = code_in(place.filesystem, place.work)
    if before == code:
        return
    ours = (work / CODE_NAME, work / INPUTS_NAME)
    if any(path.is_file() and path not in ours for path in (*work.rglob("*"), *draft.rglob("*"))):
        aside = _aside(place)
        work.mkdir(exist_ok=True)
        work.rename(aside)
        if draft.exists():
            draft.rename(aside / "draft")
        logger.warning(
            "the code has changed since this attempt at %s/%s began (%s): it starts over; what "
            "there was is set aside as %s, and `bertsmith prune` removes it",
            place.kind,
            place.fingerprint,
            difference(before, code),
            aside,
        )
    work.mkdir(exist_ok=True)
    write_to_disk(work / CODE_NAME, as_json(code))


def _aside(place: Place) -> Path:
    """Where something of this artifact goes that no builder uses."""
    moment = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
    return Path(place.kind_folder) / f".aside-{place.fingerprint}-{moment}"
