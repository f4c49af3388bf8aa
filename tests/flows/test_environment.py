"""Where a command finds its Prefect API and its home."""

import os
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import environment
from flows.local.health import answers, free_port
from flows.local.servers import HomeServers, make_login, write_record
from pipelines.errors import UserError


@pytest.fixture
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No API in the environment, no Prefect profile; a person's home folder that is empty."""
    for name in ("PREFECT_API_URL", "PREFECT_HOME", "PREFECT_PROFILE", "MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_the_home_is_what_was_given_else_the_variable_else_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert environment.home_folder("elsewhere") == tmp_path / "elsewhere"
    assert environment.home_folder() == Path(os.environ["BERTSMITH_HOME"])
    monkeypatch.delenv("BERTSMITH_HOME")
    assert environment.home_folder() == tmp_path / ".bertsmith"


def test_a_user_without_a_home_folder_has_that_of_the_run(tmp_path: Path) -> None:
    """As under a user id that no list knows; Prefect asks for the folder when it is imported."""
    code = """
import os, pwd, sys
from pathlib import Path
del os.environ["HOME"]
pwd.getpwuid = {}.__getitem__
from flows.environment import set_defaults
set_defaults(Path(sys.argv[1]))
import prefect.settings
print(Path.home())
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert ran.stdout.strip() == str(tmp_path)


def test_nothing_is_written_into_the_person_s_own_home(tmp_path: Path) -> None:
    """In a process of its own: what is imported here has looked at its variables already."""
    code = """
import os
from pathlib import Path
from flows.environment import set_defaults
set_defaults(Path(os.environ["BERTSMITH_HOME"]))
import pipelines.show  # draws with matplotlib
import matplotlib.font_manager
import mlflow.telemetry.utils
print(matplotlib.get_cachedir(), mlflow.telemetry.utils.is_telemetry_disabled())
"""
    (tmp_path / "own").mkdir()
    left_out = ("DO_NOT_TRACK", "MLFLOW_", "MPLCONFIGDIR", "XDG_", "CI", "GITHUB_", "PYTEST_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(left_out)}
    there = {"HOME": str(tmp_path / "own"), "BERTSMITH_HOME": str(tmp_path / "home")}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=kept | there, cwd=tmp_path, capture_output=True,
        text=True, timeout=300, check=True,
    )  # fmt: skip
    assert ran.stdout.split() == [str(tmp_path / "home" / "matplotlib"), "True"]
    assert list((tmp_path / "own").iterdir()) == []


ASKS = """
import os, sys
from pathlib import Path
from flows import environment
from pipelines.errors import UserError
environment.LocalApi.start = lambda home: environment.LocalApi(
    "http://127.0.0.1:1/api", environment.make_login(home), None, home, None)
try:
    environment.prepare_flows(Path(os.environ["BERTSMITH_HOME"]))
except UserError as error:
    sys.exit(str(error))
from prefect.settings import get_current_settings
settings = get_current_settings()
print(settings.api.url, settings.home, settings.api.key)
"""


def asked(folder: Path, **variables: str) -> tuple[str, str]:
    """Which API a command uses that is typed in `folder`, and what it says on standard error."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    home = {"HOME": str(folder), "BERTSMITH_HOME": str(folder / "home")}
    ran = subprocess.run(
        [sys.executable, "-c", ASKS], env=kept | home | variables, cwd=folder,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return ran.stdout.strip(), ran.stderr


def test_without_any_settings_an_api_of_the_home_is_used(tmp_path: Path) -> None:
    said, _ = asked(tmp_path, PREFECT_API_KEY="of the cloud")
    assert said == f"http://127.0.0.1:1/api {tmp_path / 'home' / 'prefect'} None"
    assert not (tmp_path / ".prefect").exists()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PYTHONOPTIMIZE", "2", "PYTHONOPTIMIZE=2 removes docstrings"),
        ("PYTHONWARNINGS", "error", "PYTHONWARNINGS=error ends the libraries"),
        (
            "RAY_TMPDIR",
            "/tmp/" + "x" * 50,
            "too long for Ray's sockets; name a folder of at most 39",
        ),
    ],
)
def test_variables_that_no_library_starts_with_are_named(
    tmp_path: Path, name: str, value: str, message: str
) -> None:
    # With warnings as errors an import may fail before; whoever is asked last says why.
    assert message in asked(tmp_path, **{name: value})[1].splitlines()[-1]


def test_what_prefect_cannot_read_or_reach_is_one_sentence(tmp_path: Path) -> None:
    assert "a SOCKS proxy is set" in asked(tmp_path, ALL_PROXY="socks5://127.0.0.1:9")[1]
    reason = asked(tmp_path, http_proxy="http://u:secret@nonsense:::x", no_proxy="localhost,::1")[1]
    assert "http_proxy is http://" in reason and "which is no address" in reason
    assert "secret" not in reason and "Traceback" not in reason
    (tmp_path / ".prefect").mkdir()
    (tmp_path / ".prefect/profiles.toml").write_text('active = "work')
    last = asked(tmp_path)[1].splitlines()[-1]
    assert last.startswith("Prefect's own settings cannot be read (") and "profiles.toml" in last


PROFILE = 'active = "work"\n[profiles.work]\nPREFECT_API_URL = "http://prefect.example/api"\n'


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (".prefect/profiles.toml", PROFILE),
        ("prefect.toml", '[api]\nurl = "http://prefect.example/api"\n'),
        ("pyproject.toml", '[tool.prefect.api]\nurl = "http://prefect.example/api"\n'),
        (".env", "PREFECT_API_URL=http://prefect.example/api\n"),
        ("another.toml", PROFILE),  # which a variable names
    ],
)
def test_a_server_that_prefects_settings_name_is_used_and_named(
    file: str, text: str, tmp_path: Path
) -> None:
    path = {"PREFECT_PROFILES_PATH": str(tmp_path / file)} if file == "another.toml" else {}
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    said, told = asked(tmp_path, **path)
    assert said.split()[0] == "http://prefect.example/api"
    assert "recorded at http://prefect.example/api, which Prefect's settings name" in told


def test_commands_use_the_servers_that_run_for_their_home(
    nothing_configured: Path, both_servers: HomeServers
) -> None:
    home = nothing_configured / "home"
    make_login(home)
    write_record(home, both_servers)
    environment.set_defaults(home)
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:5999"
    said, _ = asked(nothing_configured)
    assert said.split()[0] == "http://127.0.0.1:4999/api"


def test_servers_of_this_machine_are_asked_without_the_proxy(
    nothing_configured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")  # nobody is there
    server = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert answers(f"http://127.0.0.1:{server.server_address[1]}/")
    finally:
        server.shutdown()
        server.server_close()
    for theirs, ours in (("", "127.0.0.1,localhost"), ("intranet.example", "intranet.example")):
        monkeypatch.setenv("NO_PROXY", theirs)
        if not theirs:
            monkeypatch.delenv("NO_PROXY")
        environment.set_defaults(nothing_configured / "home")
        assert os.environ["NO_PROXY"] == ours


def test_flows_are_not_begun_where_the_prefect_server_is_away(
    nothing_configured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{free_port()}/api"
    monkeypatch.setenv("PREFECT_API_URL", url)
    # Prefect read its settings before the variable was set.
    there = temporary_settings({PREFECT_API_URL: url})
    with there, pytest.raises(UserError, match=rf"^Prefect: {url} does not answer \(.*; start the"):
        environment.prepare_flows(nothing_configured / "home")()


class Page(SimpleHTTPRequestHandler):
    """Of another program."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>")

    do_POST = do_GET  # noqa: N815


def test_another_program_s_page_is_no_prefect_server(nothing_configured: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/api"
        there = temporary_settings({PREFECT_API_URL: url})
        with there, pytest.raises(UserError, match=rf"{url}.* is no Prefect server"):
            environment.prepare_flows(nothing_configured / "home")()
        server.shutdown()


_STARTS_AN_API = """
import sys
from pathlib import Path
from flows.environment import LocalApi

api = LocalApi.start(Path(sys.argv[1]))
api.wait()
print("ready", flush=True)
sys.stdin.read()
api.stop()
"""


@pytest.mark.slow
def test_two_runs_that_start_at_once_in_a_new_home_both_get_an_api(tmp_path: Path) -> None:
    """Each would make the tables of Prefect's database: one of them found what it had made gone."""
    home = tmp_path / "home"
    unset = {"PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"}
    environ = {name: value for name, value in os.environ.items() if name not in unset}
    environ |= {"PREFECT_HOME": str(home / "prefect"), "BERTSMITH_HOME": str(home)}
    command = [sys.executable, "-c", _STARTS_AN_API, str(home)]
    started = [
        subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    try:
        for process in started:
            assert process.stdout is not None
            line = process.stdout.readline()  # ends after three minutes at the latest
            assert line == "ready\n", process.communicate(timeout=60)[1]
    finally:
        for process in started:
            process.communicate(timeout=60)
