"""What an upload asks of the Hugging Face hub, answered on the loopback and kept in memory."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

TOKEN = "hf_of_the_test"


class Hub(ThreadingHTTPServer):
    """Repositories by name, with their files; every request needs the token."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.visibilities: dict[str, str | None] = {}
        self.objects: dict[str, bytes] = {}
        self.commits: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on the screen."""

    def _answer(self, status: int, content: Any = None) -> None:
        data = json.dumps({} if content is None else content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == 401:
            self.send_header("X-Error-Message", "Invalid credentials in Authorization header")
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _repository(self) -> tuple[str, dict[str, bytes]]:
        return self._name(), self.server.repositories[self._name()]

    def _name(self) -> str:
        return "/".join(self.path.removeprefix("/api/models/").split("/")[:2]).partition("?")[0]

    def do_GET(self) -> None:
        if self._name() not in self.server.repositories:
            self._answer(404)
            return
        name, files = self._repository()
        if "/tree/" in self.path:
            rows = [
                {"type": "file", "path": path, "size": len(data), "oid": "0" * 40}
                for path, data in files.items()
            ]
            self._answer(200, rows)
        else:
            siblings = [{"rfilename": path} for path in files]
            self._answer(200, {"id": name, "sha": "0" * 40, "siblings": siblings})

    def do_PUT(self) -> None:
        self.server.objects[self.path.rpartition("/")[2]] = self._body()
        self._answer(200)

    def do_POST(self) -> None:
        body = self._body()
        if self.path.endswith("/commit/main"):
            self._commit(body)
            return
        asked = json.loads(body)
        if self.path == "/api/validate-yaml":
            is_right = "license: nonsense" not in asked["content"]
            errors = [] if is_right else [{"message": '"license" must be one of the hub\'s'}]
            self._answer(200 if is_right else 400, {"errors": errors, "warnings": []})
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(401, {"error": "Invalid credentials in Authorization header"})
        elif self.path == "/api/repos/create":
            name = f"{asked['organization']}/{asked['name']}"
            status = 409 if name in self.server.repositories else 200
            self.server.repositories.setdefault(name, {".gitattributes": b""})
            self.server.visibilities.setdefault(name, asked.get("visibility"))
            self._answer(status, {"url": f"{self.server.url}/{name}"})
        elif self.path.endswith("/preupload/main"):
            modes = [
                {"path": each["path"], "shouldIgnore": False,
                 "uploadMode": "lfs" if each["path"].endswith(".safetensors") else "regular"}
                for each in asked["files"]
            ]  # fmt: skip
            self._answer(200, {"files": modes})
        else:  # of LFS
            objects = [
                {**each, "actions": {"upload": {"href": f"{self.server.url}/up/{each['oid']}"}}}
                for each in asked["objects"]
            ]
            self._answer(200, {"transfer": "basic", "objects": objects})

    def _commit(self, body: bytes) -> None:
        name, files = self._repository()
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                self.server.commits.append(value["summary"])
            elif entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        answer = {"commitOid": "0" * 40, "commitUrl": f"{self.server.url}/{name}/commit/{'0' * 40}"}
        self._answer(200, answer)


@contextmanager
def running() -> Iterator[Hub]:
    """A hub for a test."""
    hub = Hub()
    thread = Thread(target=hub.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
