"""Claims: which process works on which attempt at an artifact of an object store.

Every attempt has a folder of its own below the artifact's working folder. The process that
creates the record `.owners/<generation>.json` in it owns the attempt; only one can. The owner
rewrites its record as long as it works. If the owner has died, or has not written for the time of
the lease, another process may create the next generation and continue the attempt. A former owner
that is still alive finds its claim lost before it writes.
"""

import json
import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath

from fsspec import AbstractFileSystem
from pydantic import BaseModel, ConfigDict, ValidationError

from pipelines.artifacts.access import create_only, names_in, store_errors
from pipelines.artifacts.code import CODE_NAME, Code, code_in, difference
from pipelines.config.errors import UserError
from pipelines.config.processes import ProcessIdentity

logger = logging.getLogger(__name__)

LEASE_SECONDS = 60.0
_BEATS_A_LEASE = 6
_OWNERS = ".owners"
_CLOCK = ".clock-"
_held: set[str] = set()  # tokens of the claims that this process holds


class ClaimLostError(UserError):
    """This process was taken for dead, and another one took over its attempt."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)

    owner: ProcessIdentity
    token: str = ""  # distinguishes two threads of one process
    released: bool = False  # ended without a result: the next owner need not wait


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write to one attempt; it pickles, for the tasks that write."""

    filesystem: AbstractFileSystem
    folder: str  # of the attempt
    generation: int
    token: str  # of its records

    @property
    def attempt(self) -> str:
        return PurePosixPath(self.folder).name

    def check(self) -> None:
        """Raise ClaimLostError where another process has taken the attempt over."""
        # A successor that has finished has removed all records.
        if _generation(self.filesystem, self.folder) != self.generation:
            raise ClaimLostError(
                f"this process sent the store no heartbeat for {LEASE_SECONDS:.0f} s, and another "
                f"one has taken over its work in {self.folder}; run again to use its result"
            )

    def write(self, *, released: bool) -> None:
        """Record that the owner is alive, or that it has released the attempt."""
        path = _record_path(self.folder, self.generation)
        self.filesystem.pipe_file(path, self.record(released=released))

    def record(self, *, released: bool) -> bytes:
        """What the store holds of this claim."""
        owner = ProcessIdentity.current()
        return _Record(owner=owner, token=self.token, released=released).model_dump_json().encode()


@contextmanager
def claimed(
    filesystem: AbstractFileSystem, work: str, lease_seconds: float, code: Code
) -> Iterator[Claim]:
    """An attempt of this process alone: an abandoned one of this `code` below `work`, or a new one.

    It is removed on leaving without an error; after an error the next process continues it.
    """
    claim = take_over(filesystem, work, lease_seconds, code) or _begin(filesystem, work, code)
    stopping = threading.Event()
    beating = threading.Thread(
        target=_beat, args=(claim, stopping, lease_seconds), name="claim", daemon=True
    )
    beating.start()
    try:
        try:
            yield claim
        finally:
            stopping.set()
            beating.join()  # a late beat would bring the record back
    except ClaimLostError:
        raise  # the attempt is another's
    except BaseException:
        _let_go(claim)
        raise
    else:
        remove(filesystem, claim.folder)
    finally:
        _held.discard(claim.token)


def take_over(
    filesystem: AbstractFileSystem, work: str, lease_seconds: float, code: Code | None = None
) -> Claim | None:
    """Claim the oldest abandoned attempt below `work`; None if there is none.

    With a `code`, attempts that other code began are skipped with a warning.
    """
    for folder in attempts(filesystem, work):
        generation = _generation(filesystem, folder)
        # Without a record it is being removed, or its removal was interrupted.
        if generation and is_abandoned(filesystem, folder, lease_seconds):
            if code is not None and (before := code_in(filesystem, folder)) != code:
                logger.warning(
                    "the code has changed since the attempt %s began (%s): a new one begins, and "
                    "`bertsmith prune` removes this one",
                    folder,
                    difference(before, code),
                )
                continue
            claim = _create(filesystem, folder, generation + 1)
            if claim is not None:
                logger.info("resuming the attempt %s", folder)
                return claim
    return None


def attempts(filesystem: AbstractFileSystem, work: str) -> list[str]:
    """Folders of the attempts below `work`, oldest first."""
    return [f"{work}/{name}" for name in names_in(filesystem, work) if not name.startswith(".")]


def is_abandoned(filesystem: AbstractFileSystem, folder: str, lease_seconds: float) -> bool:
    """Whether the owner of the attempt in `folder` released it, died, or let its lease lapse.

    An owner on this machine is looked up; the last heartbeat of another is dated by the store's
    own clock. If the store has no dates, a silent owner elsewhere counts as alive.
    """
    path = _record_path(folder, _generation(filesystem, folder))
    try:
        record = _Record.model_validate_json(filesystem.cat_file(path))
    except FileNotFoundError:
        return True  # removed, or never there
    except ValidationError:
        return _age(filesystem, path) > lease_seconds
    if record.released:
        return True
    if record.owner == ProcessIdentity.current():  # it could not release it in an outage
        return record.token not in _held
    is_alive = record.owner.is_alive()
    if is_alive is not None:
        return not is_alive
    return _age(filesystem, path) > lease_seconds


def remove(filesystem: AbstractFileSystem, path: str) -> None:
    """Remove `path` and everything below it, if it is still there."""
    try:
        filesystem.rm(path, recursive=True)
    except FileNotFoundError:
        return


def _begin(filesystem: AbstractFileSystem, work: str, code: Code) -> Claim:
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
    claim = _create(filesystem, f"{work}/{name}", 1)
    assert claim is not None, "a random name is new"
    try:
        filesystem.pipe_file(f"{claim.folder}/{CODE_NAME}", json.dumps(code).encode())
    except BaseException:
        _held.discard(claim.token)
        raise
    return claim


def _create(filesystem: AbstractFileSystem, folder: str, generation: int) -> Claim | None:
    claim = Claim(filesystem, folder, generation, token=secrets.token_hex(8))
    path = _record_path(folder, generation)
    _held.add(claim.token)  # before another thread can see the record
    is_ours = False
    try:
        is_ours = create_only(filesystem, path, claim.record(released=False))
    finally:
        if not is_ours:
            _held.discard(claim.token)
    return claim if is_ours else None


def _beat(claim: Claim, stopping: threading.Event, lease_seconds: float) -> None:
    while not stopping.wait(lease_seconds / _BEATS_A_LEASE):
        try:
            claim.check()
            claim.write(released=False)
        except ClaimLostError as error:
            logger.warning("%s", error)
            return
        except store_errors() as error:
            logger.warning("the store does not accept the heartbeat of this build: %s", error)


def _let_go(claim: Claim) -> None:
    try:
        claim.write(released=True)
    except store_errors() as error:
        logger.warning("the attempt %s is free when its lease ends: %s", claim.folder, error)


def _record_path(folder: str, generation: int) -> str:
    return f"{folder}/{_OWNERS}/{generation:06d}.json"


def _generation(filesystem: AbstractFileSystem, folder: str) -> int:
    """The generation of the attempt's owner, 0 without one."""
    stems = (name.removesuffix(".json") for name in names_in(filesystem, f"{folder}/{_OWNERS}"))
    return max((int(stem) for stem in stems if stem.isdigit()), default=0)


def _age(filesystem: AbstractFileSystem, path: str) -> float:
    """Seconds since `path` was written, by the store's clock; 0 where the store has none."""
    probe = f"{PurePosixPath(path).parent}/{_CLOCK}{secrets.token_hex(4)}"
    try:
        filesystem.pipe_file(probe, b"what time is it?")
        now = filesystem.modified(probe)
        filesystem.rm_file(probe)
        return float((now - filesystem.modified(path)).total_seconds())
    except NotImplementedError:  # a store without dates: no owner is ever taken for dead
        return 0.0
    except FileNotFoundError:
        return 0.0  # another process removed it meanwhile
