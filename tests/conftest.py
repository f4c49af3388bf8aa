"""What the whole suite shares: one Prefect API, one local Ray, and a small real recipe."""

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

# Before Prefect, Ray, MLflow or torch are imported by anyone.
os.environ.update(
    {
        # Ray's workers unpickle what tests define, and have no working folder on their path.
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        # The processes of the suite share the cores: threads of one that wait for each other spin.
        "OMP_NUM_THREADS": "1",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
    }
)
_PLACES = ("PREFECT_API_URL", "PREFECT_HOME", "MLFLOW_TRACKING_URI", "BERTSMITH_HOME")
for _name in _PLACES:
    os.environ.pop(_name, None)

# Two packages that are installed wherever Bertsmith is: real text, real labels, in seconds.
SMALL_RECIPE = """
name: small
corpus:
  sources:
    - kind: installed_documentation
      packages: [numpy, networkx]
      max_source_megabytes: 0.6
vocabulary: {size: 1200}
examples: {max_tokens: 64}
pretraining:
  size: tiny
  num_steps: 30
  global_batch_size: 16
  micro_batch_size: 8
  evaluate_every_steps: 15
  checkpoint_every_steps: 10
  evaluation_examples: 64
  final_evaluation_examples: 200
finetuning: {num_epochs: 1, num_evaluations: 2, compare_with_random: true}
"""


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, whose own groups pytest 9 does not know
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What several processes share out: a file as a whole, and all that needs Prefect to one."""
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group_of(nodeid.partition("::")[0])

    return ByFile(config, log)


@cache
def _group_of(file: str) -> str:
    text = (ROOT / file).read_text(encoding="utf-8")
    return "Prefect" if re.search(r"\b(prefect_api|whole_run)\b", text) else file


@pytest.fixture(autouse=True)
def places_of_this_test_alone() -> Iterator[None]:
    """A command that a test calls in this process says where its home is: to no later test."""
    before = {name: os.environ.get(name) for name in _PLACES}
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Prefect API that lives as long as the test session."""
    from flows.environment import LocalApi

    home = tmp_path_factory.mktemp("prefect")
    os.environ["PREFECT_HOME"] = str(home)
    local_api = LocalApi.start(home)
    local_api.wait()
    os.environ["PREFECT_API_URL"] = local_api.url
    os.environ.update(local_api.login.for_prefect_clients())

    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    # Prefect read its settings when a test module imported it, before there was an API.
    client = {PREFECT_API_URL: local_api.url, PREFECT_API_AUTH_STRING: local_api.login.text}
    with temporary_settings(client):
        yield local_api.url
    local_api.stop()
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_HOME"):
        del os.environ[name]


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """A local Ray that all tests of the session share.

    It gives up when it has not started within thirty seconds; a busy machine needs more tries.
    """
    from pipelines.cluster import connect, disconnect
    from pipelines.errors import UserError

    for tries_left in reversed(range(5)):
        try:
            connect()
            break
        except UserError:
            if not tries_left:
                raise
    yield
    disconnect()


@pytest.fixture(scope="session")
def small_recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe file of a chain that takes seconds."""
    path = tmp_path_factory.mktemp("recipe") / "small.yaml"
    path.write_text(SMALL_RECIPE)
    return path
