"""A home of its own for every test, and the one whole run that several tests look at."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from flows.local.servers import MLFLOW_SERVER, PREFECT_SERVER, HomeServers, Service
from flows.report import RunReport
from tests.flows.published_folders import saved

_CREDENTIALS = (
    "PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_AUTH", "BERTSMITH_MLFLOW_LOGIN",
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty home; what a command changes in the environment is undone after the test."""
    home = tmp_path / "home"
    monkeypatch.setenv("BERTSMITH_HOME", str(home))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.setenv("PREFECT_API_URL", os.environ.get("PREFECT_API_URL", ""))
    monkeypatch.setenv("PREFECT_HOME", os.environ.get("PREFECT_HOME", str(home / "prefect")))
    for name in _CREDENTIALS:
        known = os.environ.get(name)
        monkeypatch.setenv(name, known or "")
        if known is None:
            monkeypatch.delenv(name)
    return home


@dataclass(frozen=True)
class WholeRun:
    """A run of the whole chain on the small recipe, and where it left things."""

    home: Path
    recipe: Path
    report: RunReport


@pytest.fixture(scope="session")
def whole_run(
    prefect_api: str, local_ray: None, small_recipe: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WholeRun]:
    """The end-to-end flow, run once with real components."""
    from flows.end_to_end import end_to_end
    from pipelines.recipes.files import read_recipe

    home = tmp_path_factory.mktemp("whole run")  # a path with a space
    recipe = read_recipe(str(small_recipe), [f"runtime.home={home}"])
    yield WholeRun(home, small_recipe, end_to_end(recipe))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small model as others publish it."""
    return saved(tmp_path_factory.mktemp("published") / "model")


@pytest.fixture
def both_servers() -> Iterator[HomeServers]:
    """The record of two processes that stand in for the servers of `bertsmith up`."""
    living = {
        name: subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
        )
        for name in (PREFECT_SERVER, MLFLOW_SERVER)
    }
    services = {
        name: Service(process.pid, psutil.Process(process.pid).create_time())
        for name, process in living.items()
    }
    yield HomeServers("http://127.0.0.1:4999", "http://127.0.0.1:5999", services)
    for process in living.values():
        process.communicate()
