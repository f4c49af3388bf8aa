"""Reaching a store: from its URL to a file system, and what to say where it does not answer."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from pipelines.config.errors import UserError, first_line

NO_CREDENTIALS = (
    "no credentials for it were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
    "AWS_PROFILE"
)
FULL = (errno.ENOSPC, errno.EDQUOT)  # what a disk says, or a quota
# What an S3 client does about a store that is busy or away: twelve tries wait a minute and more,
# where its own five may give up after ten seconds.
_PATIENCE = {"retries": {"mode": "standard", "max_attempts": 12}}


def open_store(url: str, *, is_patient: bool = True) -> tuple[AbstractFileSystem, str]:
    """The file system of the store at `url`, and the store's path in it.

    On S3 it waits a minute or more for a store that is busy, unless `is_patient` is false or
    AWS_MAX_ATTEMPTS or AWS_RETRY_MODE say what to do. Raises UserError where the protocol is
    unknown, its package is missing, or a local path cannot be a folder.
    """
    try:
        # A listing kept from before would hide what other processes have written since.
        options = {"config_kwargs": _PATIENCE} if is_patient and _takes_patience(url) else {}
        filesystem, root = url_to_fs(url, use_listings_cache=False, **options)
    except ImportError as error:
        raise UserError(
            f"the store {url} needs a package that is not installed ({error}); install it, or "
            "choose a folder or s3://bucket/prefix"
        ) from None
    except ValueError as error:
        raise UserError(
            f"the store {url} is neither a folder nor a URL such as s3://bucket/prefix ({error}); "
            "choose another store"
        ) from None
    root = root.rstrip("/")
    if isinstance(filesystem, LocalFileSystem):
        _check_is_folder(Path(root))
    elif not root.strip("/"):
        raise UserError(f"the store {url} names no bucket; write for example s3://bucket/prefix")
    return filesystem, root


def _takes_patience(url: str) -> bool:
    is_configured = os.environ.get("AWS_MAX_ATTEMPTS") or os.environ.get("AWS_RETRY_MODE")
    return url.startswith(("s3://", "s3a://")) and not is_configured


def _check_is_folder(root: Path) -> None:
    for path in (root, *root.parents):
        if path.is_dir():
            return
        if path.exists():
            raise UserError(f"the store cannot be written: {path} is a file; choose another store")


@contextmanager
def store_errors_explained(url: str) -> Iterator[None]:
    """Say in a sentence why the store at `url` cannot be used, whatever its client raises."""
    try:
        yield
    except store_errors() as error:
        reason = _reason(error)
        if reason is None:
            raise
        raise UserError(f"the store {url} cannot be used: {reason}") from error


@contextmanager
def full_disk_explained(what: str, place: object) -> Iterator[None]:
    """Say in a sentence that the disk of `place` is full, where the block finds it so."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise UserError(
            f"no room for {what}: the disk of {place} is full; free some space and run again "
            "(finished files are kept)"
        ) from error


def names_in(filesystem: AbstractFileSystem, folder: str) -> list[str]:
    """Names of what lies in `folder`, sorted; none where there is no such folder."""
    try:
        entries = filesystem.ls(folder, detail=False)
    except FileNotFoundError:
        return []
    return sorted(name for entry in entries if (name := entry.rstrip("/").rpartition("/")[2]))


def store_errors() -> tuple[type[Exception], ...]:
    """What a store that fails may raise; its client's own errors need be no OSError."""
    clients = (("botocore.exceptions", "BotoCoreError"), ("aiohttp", "ClientError"))
    loaded = [(sys.modules.get(module), name) for module, name in clients]
    return (OSError, *(getattr(module, name) for module, name in loaded if module is not None))


def is_away(error: object) -> bool:
    """Whether the S3 client says that nobody answered, or that an answer broke off.

    Its errors are no OSError. Missing credentials and refused certificates stay as they are.
    """
    botocore = sys.modules.get("botocore.exceptions")
    if botocore is None or isinstance(error, botocore.SSLError):
        return False
    return isinstance(
        error,
        botocore.ConnectionError | botocore.HTTPClientError | botocore.IncompleteReadError,
    )


def lacks_credentials(error: Exception) -> bool:
    name = type(error).__name__
    return name in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError")


def _reason(error: Exception) -> str | None:
    name = type(error).__name__
    if lacks_credentials(error):
        return NO_CREDENTIALS
    if isinstance(error, PermissionError):
        return f"access was denied ({first_line(error)}); check the credentials and its rights"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        if "bucket" not in str(error).lower():
            return None  # an answer
        return f"its bucket is not there ({first_line(error)}); create it or choose another"
    if name in ("EndpointConnectionError", "ConnectTimeoutError", "ConnectionClosedError"):
        return f"no server answers ({first_line(error)}); check AWS_ENDPOINT_URL and the network"
    if type(error).__module__.partition(".")[0] in ("aiohttp", "requests"):
        return f"its server does not answer ({first_line(error)}); check address and network"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}; choose another store"
    return None
