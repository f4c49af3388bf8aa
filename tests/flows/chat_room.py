"""The webhook of a chat room, and what it is sent."""

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from flows.services.platform import NOTIFY_VARIABLE

SECRET = "never-to-be-seen"


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What a chat room's webhook is sent; its address is a secret, as theirs are."""
    heard: list[dict[str, Any]] = []

    class Room(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Room)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(
        NOTIFY_VARIABLE, f"http://127.0.0.1:{server.server_address[1]}/hook-{SECRET}"
    )
    yield heard
    server.shutdown()
    server.server_close()
