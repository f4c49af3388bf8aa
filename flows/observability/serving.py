"""A port that answers Prometheus; where a token is set, nobody who does not bring it."""

import hmac
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from pipelines.core.errors import UserError

HOST_VARIABLE = "BERTSMITH_METRICS_HOST"
TOKEN_VARIABLE = "BERTSMITH_METRICS_TOKEN"
_LOOPBACK = ("127.0.0.1", "localhost")


class Served:
    """A server in threads of its own."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server
        self.host, self.port = str(server.server_address[0]), int(server.server_address[1])
        self._thread = threading.Thread(
            target=server.serve_forever, name="metrics-server", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def wait(self) -> None:
        """Return when it was closed."""
        self._thread.join()


def serving(registry: CollectorRegistry, *, port: int, host: str = "") -> Served:
    """Serve `registry` at /metrics of `port`; 0 takes a free one.

    It listens on `host`, else on $BERTSMITH_METRICS_HOST, else on the loopback. Where
    $BERTSMITH_METRICS_TOKEN is set, requests need it as `Authorization: Bearer …`. Raises UserError
    where other machines could ask and no token is set, and OSError where the port is taken.
    """
    host = host or os.environ.get(HOST_VARIABLE, "127.0.0.1")
    token = os.environ.get(TOKEN_VARIABLE, "")
    if host not in _LOOPBACK and not token:
        raise UserError(
            f"figures for other machines need a token that Prometheus brings along, found none; "
            f"set {TOKEN_VARIABLE}, or listen on 127.0.0.1 instead of {host}"
        )
    expected = f"Bearer {token}".encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            brought = self.headers.get("Authorization", "").encode()
            if token and not hmac.compare_digest(brought, expected):
                self._answer(401, b"a token is needed\n", "text/plain")
            elif self.path.partition("?")[0] != "/metrics":
                self._answer(404, b"figures are at /metrics\n", "text/plain")
            else:
                self._answer(200, generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4)

        def _answer(self, status: int, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    return Served(server)
