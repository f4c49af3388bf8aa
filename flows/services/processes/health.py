"""Whether a server is there.

    BERTSMITH_HEALTH_URL=http://127.0.0.1:4200/api/health python -m flows.services.processes.health

ends with 0 where it is and with 1 where it is not: the image's health check.
"""

import os
import sys
import urllib.error
import urllib.request
from http.client import HTTPException
from importlib.metadata import version

_ANSWER_SECONDS = 5
URL_VARIABLE = "BERTSMITH_HEALTH_URL"
# Our servers are on the loopback, where no proxy has a say.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def answers(url: str) -> bool:
    """Whether something answers at `url` with success."""
    try:
        with _open(url, timeout=_ANSWER_SECONDS) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, HTTPException, OSError):
        return False


def main() -> None:
    """End with success where the server that the environment names answers.

    Where it names none, nothing listens, and an installation that can be read is all there is.
    """
    url = os.environ.get(URL_VARIABLE, "")
    if url and not answers(url):
        sys.exit(f"{url} must answer with success, but it does not")
    sys.stdout.write(f"bertsmith {version('bertsmith')}: healthy\n")


if __name__ == "__main__":
    main()
