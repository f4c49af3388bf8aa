"""What several modules look at: overlays for Kubernetes, the composition, and their passwords."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.delivery.composition import COMPOSE, read
from tests.delivery.declared import DEPLOYING, make_credentials
from tests.delivery.overlays import OVERLAYS, Manifest, rendered


# By module: of the session, pytest would sort the tests of all modules by their overlay.
@pytest.fixture(scope="module", params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> list[Manifest]:
    """Every object of an overlay."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl renders the overlays, and there is none")
    return rendered(request.param)


@pytest.fixture(scope="session")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The names in the two Secrets, which are made from the files of a first start."""
    folder = tmp_path_factory.mktemp("credentials")
    make_credentials(folder / "credentials")
    (edit,) = re.findall(r"^(sed -i .*?)\s+#", DEPLOYING.read_text(), flags=re.MULTILINE)
    subprocess.run(["sh", "-c", edit], cwd=folder, check=True)
    return {
        f"bertsmith-{part}": set(re.findall(
            r"^(\w+)=", (folder / "credentials" / part / "environment").read_text(), re.MULTILINE
        ))
        for part in ("clients", "servers")
    }  # fmt: skip


@pytest.fixture(scope="session")
def composition() -> dict[str, Any]:
    return read(COMPOSE)


@pytest.fixture(scope="session")
def ours(composition: dict[str, Any]) -> dict[str, Any]:
    """The services of the composition that run our image."""
    return {n: s for n, s in composition["services"].items() if s["image"].startswith("bertsmith")}


@pytest.fixture(scope="session")
def passwords(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first start makes."""
    folder = tmp_path_factory.mktemp("credentials")
    assert make_credentials(folder)
    return folder
