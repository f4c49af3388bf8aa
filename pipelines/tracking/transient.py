"""Which failures of a tracker, a store or a network are transient."""

from mlflow.exceptions import InvalidUrlException, MlflowException
from requests import HTTPError
from sqlalchemy.exc import SQLAlchemyError

from pipelines.config.errors import UserError
from pipelines.store.access import FULL, is_away, store_errors

_WILL_FAIL_AGAIN = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_TRANSIENT_CODES = frozenset(
    (
        "INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "DEADLINE_EXCEEDED", "REQUEST_LIMIT_EXCEEDED",
        "RESOURCE_EXHAUSTED", "CANCELLED",
    )
)  # fmt: skip
_TOO_MANY_REQUESTS = 429


def is_transient(error: object) -> bool:
    """Whether a tracker, a store, a disk or a network failed in a way that a retry may cure."""
    seen: set[int] = set()  # an error that was raised from itself is its own cause
    while isinstance(error, UserError) and id(error) not in seen:
        if error.is_transient:
            return True
        seen.add(id(error))
        error = error.__cause__  # a sentence around what the tracker or the store said
    if is_away(error):
        return True
    if isinstance(error, MlflowException):
        # MLflow says INTERNAL_ERROR of refused connections and of every 5xx without a code.
        is_mistake = isinstance(error, InvalidUrlException)
        return error.error_code in _TRANSIENT_CODES and not is_mistake
    if isinstance(error, HTTPError) and error.response is not None:
        status = error.response.status_code
        return status >= 500 or status == _TOO_MANY_REQUESTS
    is_lasting = isinstance(error, _WILL_FAIL_AGAIN) or getattr(error, "errno", None) in FULL
    return isinstance(error, OSError) and not is_lasting


def tracker_errors() -> tuple[type[Exception], ...]:
    """What a tracker that fails may raise: where its files are kept, other errors than MLflow's."""
    return (MlflowException, SQLAlchemyError, *store_errors())
