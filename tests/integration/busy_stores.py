"""A store that is busy for a while: a proxy before an S3 server that answers 503 on request."""

import http.client
import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

_SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)
_OWN_HEADERS = {"connection", "transfer-encoding", "content-length"}


class BusyStore:
    """Passes requests on to the server at `url`, but for the times when it is busy."""

    def __init__(self, url: str) -> None:
        self._server = urlsplit(url).netloc
        self._busy_until = 0.0
        self.refused: list[str] = []  # paths that were asked for in vain
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy._answer(self)

            do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815

            def log_message(self, *arguments: object) -> None:
                pass

        self._http = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def be_busy(self, seconds: float) -> None:
        """Answer 503 from now on, for so long."""
        self._busy_until = time.monotonic() + seconds

    def _answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        body = _body_of(request)
        if time.monotonic() < self._busy_until:
            self.refused.append(request.path)
            _reply(request, 503, {"Content-Type": "application/xml"}, _SLOW_DOWN)
            return
        server = http.client.HTTPConnection(self._server)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _OWN_HEADERS}
        server.request(request.command, request.path, body, headers)
        answer = server.getresponse()
        _reply(request, answer.status, dict(answer.getheaders()), answer.read())
        server.close()


class _Server(http.server.ThreadingHTTPServer):
    """Takes as many clients at once as a cluster has."""

    daemon_threads = True
    request_queue_size = 128


def _body_of(request: http.server.BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length", 0)))
    parts = []
    while size := int(request.rfile.readline().split(b";")[0], 16):
        parts.append(request.rfile.read(size))
        request.rfile.readline()
    while request.rfile.readline().strip():
        pass
    return b"".join(parts)


def _reply(
    request: http.server.BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes
) -> None:
    request.send_response(status)
    length = str(len(body))
    for name, value in headers.items():
        if name.lower() == "content-length":
            length = value  # of what a HEAD asks about, which is not sent
        elif name.lower() not in _OWN_HEADERS:
            request.send_header(name, value)
    request.send_header("Content-Length", length if request.command == "HEAD" else str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


@contextmanager
def busy_store(url: str) -> Iterator[BusyStore]:
    """A store before the S3 server at `url`."""
    store = BusyStore(url)
    thread = threading.Thread(target=store._http.serve_forever, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        store._http.shutdown()
        store._http.server_close()
        thread.join()
