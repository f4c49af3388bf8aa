"""The token of a local Ray, which nobody else needs to know."""

import os
import secrets
from pathlib import Path

_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def use_own_token() -> None:
    """Give this process and its children a token, where nobody named one and none is kept.

    Ray itself would write one into the person's own home folder, and fail where that is read-only.
    """
    is_kept = (Path.home() / ".ray" / "auth_token").is_file()
    if not is_kept and not any(name in os.environ for name in _VARIABLES):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
