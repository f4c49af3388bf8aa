"""A person with a home, who starts and stops its services from shells of their own."""

import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.local.servers import CREDENTIALS_NAME, HomeServers, read_record
from tests.command_line import BERTSMITH
from tests.waiting import wait_for

CHECKOUT = Path(__file__).parents[2]
OWN_VARIABLES = ("PREFECT_", "MLFLOW_", "BERTSMITH_")


@dataclass(frozen=True)
class Person:
    """Someone with a home, who types into shells that know nothing of it."""

    home: Path
    prefect_port: int
    mlflow_port: int

    def call(self, arguments: list[str], *, check: bool = True, folder: Path | None = None) -> str:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(OWN_VARIABLES)}
        environment["PYTHONPATH"] = str(CHECKOUT)
        completed = subprocess.run(
            arguments,
            env=environment,
            cwd=folder or self.home.parent,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        said = completed.stdout + completed.stderr
        assert completed.returncode == 0 or not check, said
        return said

    def up(self, folder: Path | None = None) -> str:
        ports = ["--prefect-port", str(self.prefect_port), "--mlflow-port", str(self.mlflow_port)]
        return self.call([*BERTSMITH, "up", "--home", str(self.home), *ports], folder=folder)

    def down(self) -> str:
        return self.call([*BERTSMITH, "down", "--home", str(self.home)])

    def shell(self, line: str) -> str:
        """A new shell with the variables that `up` prints."""
        password_file = shlex.quote(str(self.home / CREDENTIALS_NAME))
        api = f"http://127.0.0.1:{self.prefect_port}/api"
        exported = f'PREFECT_API_URL={api} PREFECT_API_AUTH_STRING="$(cat {password_file})"'
        return self.call(["bash", "-c", f"set -e; export {exported}; {line}"])

    def python(self, code: str) -> Any:
        """What a client of both servers finds out: the JSON that `code` prints."""
        prologue = (
            "import json\n"
            "from prefect.client.orchestration import get_client\n"
            "client = get_client(sync_client=True).__enter__()\n"
            "demo = client.read_deployment_by_name('end-to-end/demo')\n"
        )
        said = self.shell(shlex.join([sys.executable, "-c", prologue + code]))
        return json.loads(said.splitlines()[-1])

    def trigger(self, deployment: str, recipe: dict[str, Any], *options: str) -> str:
        prefect = [sys.executable, "-m", "prefect", "deployment", "run", deployment]
        return self.shell(
            shlex.join([*prefect, "--param", f"recipe={json.dumps(recipe)}", *options])
        )

    def record(self) -> HomeServers:
        servers = read_record(self.home)
        assert servers is not None
        return servers

    def kill(self, name: str) -> None:
        servers = self.record()
        os.kill(servers.services[name].pid, signal.SIGKILL)
        wait_for(lambda: not servers.is_running(name))


def rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    """What a query of a server's database gives, without asking the server."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        return connection.execute(query).fetchall()


def num_points(home: Path) -> int:
    """Of all training curves that the tracker holds."""
    query = "select count(*) from metrics where key = 'train/loss'"
    return int(rows(home / "mlflow.db", query)[0][0])


def newest_flow_run(home: Path) -> tuple[str, str]:
    """The id and the state's name of the newest flow run."""
    query = "select id, state_name from flow_run order by created desc limit 1"
    ((name, state),) = rows(home / "prefect" / "prefect.db", query)
    return name, state


def newest_training_run(home: Path) -> str:
    """The status of the newest pretraining that the tracker holds."""
    ((status,),) = rows(
        home / "mlflow.db",
        "select status from runs where run_uuid in (select run_uuid from tags where "
        "key = 'bertsmith.stage' and value = 'pretraining') order by start_time desc limit 1",
    )
    return str(status)


def train_endlessly(person: Person, endless: dict[str, Any]) -> None:
    """Return when the flow run has taken steps: Prefect gives a cancelled one 30 s to save."""
    before = num_points(person.home)
    person.trigger("end-to-end/demo", endless)
    wait_for(lambda: num_points(person.home) > before, "the first steps")


def status(url: str, body: bytes | None = None, **headers: str) -> int:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
