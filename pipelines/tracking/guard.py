"""MLflow's server behind one user and password: `mlflow server --app-name bertsmith`.

They are those of BERTSMITH_MLFLOW_LOGIN, http://user:password@host:port. MLflow's own `basic-auth`
app would need two more packages, a user database and a slow hash for every request:
docs/decisions/0010.
"""

import hmac

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pipelines.errors import UserError
from pipelines.tracking.address import LOGIN, authorization

_OPEN_PATHS = ("/health", "/version")  # they show nothing, and clients wait for a server by them
_ASK = {"WWW-Authenticate": 'Basic realm="Bertsmith: MLflow"'}


class Guard:
    """Lets requests through that bring user and password, and come from no other page."""

    def __init__(self, app: ASGIApp, header: str) -> None:
        self._app = app
        self._header = header.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # MLflow has none
            await send({"type": "websocket.close", "code": 1008})
            return
        app = self._app
        if scope["type"] == "http" and scope["path"] not in _OPEN_PATHS:
            headers = Request(scope).headers
            given, origin = headers.get("authorization", ""), headers.get("origin")
            if not hmac.compare_digest(given.encode(), self._header):
                app = PlainTextResponse("user and password are needed", 401, _ASK)
            elif origin is not None and origin.partition("://")[2] != headers.get("host"):
                # Another page's script: a browser brings the password along by itself.
                app = PlainTextResponse("only this server's own pages may ask", 403)
        await app(scope, receive, send)


def guarded() -> ASGIApp:
    """MLflow's application behind the guard. Raises UserError without a password to ask for."""
    header = authorization()
    if not header:
        raise UserError(f"an MLflow server needs {LOGIN}=http://user:password@host:port; set it")
    from mlflow.server.fastapi_app import app

    return Guard(app, header)
