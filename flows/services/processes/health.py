"""Whether a server is there."""

import urllib.error
import urllib.request
from http.client import HTTPException

_ANSWER_SECONDS = 5
# Our servers are on the loopback, where no proxy has a say.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def answers(url: str) -> bool:
    """Whether something answers at `url` with success."""
    try:
        with _open(url, timeout=_ANSWER_SECONDS) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, HTTPException, OSError):
        return False
