"""Access to a store: opening it, explaining its errors, writes that are durable or only create."""

import errno
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from pipelines.errors import UserError, first_line

NO_CREDENTIALS = (
    "no credentials for it were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
    "AWS_PROFILE"
)
FULL = (errno.ENOSPC, errno.EDQUOT)  # of a disk, of a quota
# For an S3 store that is busy or unreachable: twelve tries wait a minute or more, where the
# client's own five may give up after ten seconds.
_PATIENCE = {"retries": {"mode": "standard", "max_attempts": 12}}


def open_store(url: str, *, is_patient: bool) -> tuple[AbstractFileSystem, str]:
    """The file system of the store at `url`, and the store's path in it.

    On S3 it waits a minute or more for a store that is busy, unless `is_patient` is false or
    AWS_MAX_ATTEMPTS says how often to try. Raises UserError for what cannot be a store.
    """
    waits = is_patient and url.startswith("s3://") and "AWS_MAX_ATTEMPTS" not in os.environ
    try:
        # A cached listing would hide what other processes have written since.
        filesystem, root = url_to_fs(
            url, use_listings_cache=False, **({"config_kwargs": _PATIENCE} if waits else {})
        )
        if url.startswith(("http://", "https://")):
            raise ValueError("nothing can be written there")
    except (ImportError, OSError, TypeError, ValueError) as error:
        raise UserError(
            f"the store {url} is neither a folder nor a URL such as s3://bucket/prefix ({error}); "
            "choose another store"
        ) from None
    root = root.rstrip("/")
    if isinstance(filesystem, LocalFileSystem):
        if not (nearest := nearest_existing(Path(root))).is_dir():
            raise UserError(
                f"the store cannot be written: {nearest} is a file; choose another store"
            )
    elif not root.strip("/"):
        raise UserError(f"the store {url} names no bucket; write for example s3://bucket/prefix")
    elif any(character in url for character in "*?["):
        raise UserError(
            f"the store {url} has one of * ? [ in its name, which object stores read as a pattern "
            "for other names; choose a store without them"
        )
    return filesystem, root


@contextmanager
def store_errors_explained(url: str) -> Iterator[None]:
    """Raise UserError if the block finds that the store at `url` cannot be used.

    That a file is not there is an answer, and passes.
    """
    try:
        yield
    except store_errors() as error:
        response = getattr(error.__cause__, "response", None) or {}
        has_bucket = response.get("Error", {}).get("Code") != "NoSuchBucket"
        if has_bucket and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise
        remedy = "choose another store"
        if "://" in url:
            remedy = (
                "check its address and bucket (AWS_ENDPOINT_URL), the credentials and their rights "
                "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE) and the network"
            )
        raise UserError(f"the store {url} cannot be used: {first_line(error)}; {remedy}") from error


@contextmanager
def full_disk_explained(what: str, place: object) -> Iterator[None]:
    """Raise UserError if the block finds the disk of `place` full."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise UserError(
            f"no room for {what}: the disk of {place} is full; free some space and run again "
            "(finished files are kept)"
        ) from error


def store_errors() -> tuple[type[Exception], ...]:
    """What a failing store may raise; errors of its client are not always OSError."""
    clients = (("botocore.exceptions", "BotoCoreError"), ("aiohttp", "ClientError"))
    loaded = [(sys.modules.get(module), name) for module, name in clients]
    return (OSError, *(getattr(module, name) for module, name in loaded if module is not None))


def lacks_credentials(error: object) -> bool:
    """Whether the S3 client found no credentials, or not all of them."""
    name = type(error).__name__
    return name in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError")


def remove(filesystem: AbstractFileSystem, path: str) -> None:
    """Remove `path` and everything below it, if it is still there."""
    try:
        filesystem.rm(path, recursive=True)
    except FileNotFoundError:
        return


def create_only(filesystem: AbstractFileSystem, path: str, data: bytes) -> bool:
    """Create `path`; False if it exists already with other contents.

    The store decides: `If-None-Match: *` on S3, its equivalent elsewhere.
    """
    for pause_seconds in (0.2, 0.4, 0.8, 0.0):
        try:
            filesystem.pipe_file(path, data, mode="create")
        except OSError:
            # Stores name the refused condition in different ways. What is there may be our own
            # write: a client that lost the answer tries again.
            if filesystem.exists(path):
                return bool(filesystem.cat_file(path) == data)
            if not pause_seconds:
                raise
            time.sleep(pause_seconds)  # two writers at the same instant: S3 refuses both
        else:
            return True
    raise AssertionError("the last try returns or raises")


def nearest_existing(path: Path) -> Path:
    """`path`, or its nearest parent that exists: `path` itself may be created later."""
    return next(each for each in (path, *path.parents) if each.exists())


def write_to_disk(path: Path, text: str) -> None:
    """Write a file whole or not at all; once this returns it survives a power failure."""
    partial = path.with_name(f".partial-{path.name}-{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    flush(partial)
    partial.replace(path)
    flush(path.parent)


def flush(path: Path) -> None:
    """Force a file's bytes, or a directory's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_folders(folder: Path) -> None:
    """Force the entries of `folder` and of every directory in it to the disk."""
    for path in folder.rglob("*"):
        if path.is_dir():
            flush(path)
    flush(folder)


_PREFIX = "bertsmith-scratch-"
_ABANDONED_SECONDS = 24 * 3600.0


def scratch_folder() -> Path:
    """A new temporary folder; those that killed processes left a day ago are removed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if folder.exists() and time.time() - folder.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=_PREFIX))
