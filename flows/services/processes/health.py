"""Whether a server is there."""

import urllib.error
import urllib.request
from http.client import HTTPException

_ANSWER_SECONDS = 5


def answers(url: str) -> bool:
    """Whether something answers at `url` with success."""
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, HTTPException, OSError):
        return False
