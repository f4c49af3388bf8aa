"""Servers and ports of this machine.

    python -m flows.local.health http://127.0.0.1:4200/api/health

exits with 0 if the server answers, and with 1 if it does not: the image's health check.
"""

import socket
import sys
import urllib.request
from http.client import HTTPException

_ANSWER_SECONDS = 5
# Our servers are on the loopback: no proxy is used.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def answers(url: str) -> bool:
    """Whether `url` answers with success."""
    try:
        with _open(url, timeout=_ANSWER_SECONDS) as response:
            return bool(response.status == 200)
    except (HTTPException, OSError):
        return False


def is_free(port: int) -> bool:
    """Whether this port of 127.0.0.1 is free now."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """A free port of 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    for _url in sys.argv[1:]:  # without one nothing listens here
        if not answers(_url):
            sys.exit(f"{_url} does not answer")
