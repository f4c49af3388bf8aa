"""Errors that a person can act on, and secrets, which no error, page or file may show."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

from pydantic import PlainSerializer

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

HIDDEN = "***"

# What is between :// and the host. After `name:` everything up to an @ goes, since passwords hold
# slashes (AWS's), quotes and blanks. A number there is a port, but where the name is no host's.
_USERINFO = re.compile(
    r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)(?:"
    r"[^\s/?#'\"<>]*@"
    r"|(?:[^\s/?#@:'\"<>\[]*\.[^\s/?#@:'\"<>\[]*|localhost):(?!\d+(?:[/?#\s]|$))"
    r"(?:(?!://)[^@\n]){0,200}@"
    r"|[^\s/?#@:'\"<>\[.]+:(?!\d+(?:[?#\s]|$))(?:(?!://)[^@\n]){0,200}@)"
)
# Query parameters that carry a secret: presigned URLs of S3, Google and Azure, tokens, keys; also
# after a #, and encoded, as in ODBC's addresses.
_SECRET_PARAMETER = re.compile(
    r"(?P<name>(?:[?&;#]|%3F|%26|%3B)(?:amp;)?(?:"
    r"x-(?:amz|goog)-(?:signature|credential|security-token)|awsaccesskeyid|googleaccessid|"
    r"signature|sig|(?:access_?|auth_?|id_?|refresh_?|sas_?|session_?)?token|jwt|code|"
    r"(?:api|access|account|private|secret|sas|subscription)?[_-]?key|"
    r"(?:client_?)?secret|password|passwd|pwd|auth|authorization|credentials?"
    r")(?:=|%3D))(?:(?!%3B|%26)[^&;\s'\"<>])+",
    re.IGNORECASE,
)


def redacted(text: str) -> str:
    """`text` with user names and passwords cut from its URIs and secret query values hidden."""
    if "://" not in text:
        return text
    return _SECRET_PARAMETER.sub(rf"\g<name>{HIDDEN}", _USERINFO.sub(r"\g<scheme>", text))


def first_line(error: BaseException) -> str:
    """The first line of what was raised, without secrets; its type where it says nothing."""
    return (redacted(str(error)).strip() or type(error).__name__).splitlines()[0]


class UserError(ValueError):
    """Something the person running Bertsmith can put right; its text is one clear sentence.

    Say what must hold, what was found, and what to do. The command line prints the text alone
    and exits with code 2; a flow run fails with it as its message. Secrets inside URIs are cut.
    """

    is_transient = False  # set where the cause is known: a Ray task loses it

    def __init__(self, sentence: str) -> None:
        super().__init__(redacted(sentence))


class DivergedError(UserError):
    """Too many skipped steps of a training run: with other values it may do well."""


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Raise UserError, which names the folder, where the block finds nothing that can be read."""
    try:
        yield
    except UserError:
        raise
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{folder} holds no model with its tokenizer that can be read: {reason}"
        ) from error


Uri = Annotated[str, PlainSerializer(redacted, return_type=str, when_used="json")]
"""A path or URI of the settings: as JSON or YAML, which are kept, it carries no secret."""


def without_secrets(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The same function; what it raises has no secret in its text, nor have its causes.

    For functions whose errors are written down by others, such as the stages of a flow.
    """

    @wraps(function)
    def guarded(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        try:
            return function(*args, **options)
        except Exception as error:
            clean_error(error)
            raise

    return guarded


def clean_error(error: BaseException) -> None:
    """Redact the texts of an error, and of what caused it, in place."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        waiting.extend((current.__cause__, current.__context__))
        current.args = tuple(
            redacted(part) if isinstance(part, str) else part for part in current.args
        )
        # Such as MLflow's `message` and the `filename` of an OSError.
        for name in (*vars(current), "filename", "filename2", "strerror"):
            if isinstance(value := getattr(current, name, None), str):
                setattr(current, name, redacted(value))
        asked: Any = current
        if getattr(asked, "request_info", None) is not None:  # aiohttp makes its text of it
            address = asked.request_info.real_url.with_query(None)
            asked.request_info = asked.request_info._replace(url=address, real_url=address)


def nearest(name: str, names: Iterable[str], *, cutoff: float = 0.7, most: int = 3) -> str:
    """`; did you mean …?` with the names that are spelled like `name`; empty where none is."""
    near = get_close_matches(name, list(names), n=most, cutoff=cutoff)
    return f"; did you mean {' or '.join(near)}?" if near else ""
