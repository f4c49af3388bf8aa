"""PostgreSQL from Debian's package, in its own folder, on the loopback, with a password."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.stack.processes import Server, ordinary_user, own_folder
from flows.services.health import free_port

_USER = "bertsmith"


def binaries() -> Path | None:
    """The folder of the newest installed server, or None."""
    found = [
        folder
        for folder in Path("/usr/lib/postgresql").glob("*/bin")
        if (folder / "initdb").exists() and folder.parent.name.isdigit()
    ]
    if found:
        return max(found, key=lambda folder: int(folder.parent.name))
    initdb = shutil.which("initdb")
    return Path(initdb).parent if initdb else None


class Postgres:
    """A PostgreSQL server; it starts empty and its data lasts as long as its folder."""

    def __init__(self, folder: Path) -> None:
        found = binaries()
        if found is None:
            raise RuntimeError("PostgreSQL must be installed, found no initdb")
        self._binaries = found
        self._user = ordinary_user("postgres")
        self.password = secrets.token_urlsafe(18)
        self.port = free_port()
        self._data = own_folder(folder / "postgres", self._user) / "data"
        self._password_file = self._data.parent / "password"
        self._password_file.touch(0o600)
        self._password_file.write_text(self.password + "\n")
        if self._user is not None:
            shutil.chown(self._password_file, self._user)
        self._call(
            "initdb", "--pgdata", str(self._data), "--username", _USER, "--auth=scram-sha-256",
            "--pwfile", str(self._password_file), "--encoding=UTF8", "--no-locale", "--no-sync",
        )  # fmt: skip
        options = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": 200,
        }
        arguments = [part for key, value in options.items() for part in ("-c", f"{key}={value}")]
        self.server = Server(
            "PostgreSQL",
            [str(self._binaries / "postgres"), "-D", str(self._data), *arguments],
            {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            folder / "postgres.log",
            user=self._user,
        )

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.server.start(self.answers)

    def stop(self) -> None:
        """Stop it as its package does: connections are closed, nothing is lost."""
        try:
            if self.server.is_running():
                self._call(
                    "pg_ctl", "stop", "--pgdata", str(self._data), "--mode=fast", "--wait",
                    "--timeout=300",
                )  # fmt: skip
        finally:
            self.server.stop()

    def answers(self) -> bool:
        """Whether it accepts connections."""
        command = [str(self._binaries / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def version(self) -> str:
        """The server's version."""
        return self._call("postgres", "--version").split()[2]

    def uri(self, database: str, driver: str = "postgresql") -> str:
        """The database URI for clients; it includes the password."""
        return f"{driver}://{_USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    def create(self, database: str) -> None:
        """Create an empty database."""
        self.client("createdb", database)

    def sql(self, database: str, statement: str) -> str:
        """The output of a statement, with fields separated by tabs."""
        arguments = ["--no-align", "--tuples-only", "--field-separator=\t", "--command", statement]
        return self.client("psql", *arguments, "--dbname", database).strip()

    def connect_with_wrong_password(self) -> str:
        """Try to connect. Raises RuntimeError: it is refused."""
        connection = ["--host=127.0.0.1", f"--port={self.port}", f"--username={_USER}"]
        select = ["--command=select 1", "--dbname=postgres"]
        return self._call("psql", *connection, *select, PGPASSWORD="wrong")

    def client(self, program: str, *arguments: str) -> str:
        """Run one of PostgreSQL's programs as the owner of the databases; returns its output."""
        connection = ["--host=127.0.0.1", f"--port={self.port}", f"--username={_USER}"]
        return self._call(program, *connection, *arguments, PGPASSWORD=self.password)

    def _call(self, program: str, *arguments: str, **environment: str) -> str:
        server_side: Sequence[str] = ("initdb", "pg_ctl", "postgres")
        user = self._user if program in server_side else None
        completed = subprocess.run(
            [str(self._binaries / program), *arguments],
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **environment},
            user=user,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        if completed.returncode:
            raise RuntimeError(f"{program} failed: {completed.stderr.strip()}")
        return completed.stdout
