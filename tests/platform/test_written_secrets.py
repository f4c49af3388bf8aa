"""What a platform writes down; read after its runs, which have logs of their own by then."""

import subprocess
from pathlib import Path

import pytest

from tests.platform.whole import Platform

pytestmark = pytest.mark.platform


def test_no_secret_stands_in_arguments_or_logs(platform: Platform) -> None:
    stack = platform.stack
    secrets = (
        stack.login.password,
        stack.postgres.password,
        stack.store.secret_key,
        platform.cluster.driver_env["RAY_AUTH_TOKEN"],
    )
    shown = subprocess.run(
        ["ps", "-e", "-o", "args"], capture_output=True, text=True, check=True
    ).stdout
    logs = [*_logs(stack.folder), *_logs(platform.cluster.folder)]
    assert any("raylet" in log.name for log in logs)
    for secret in secrets:
        assert secret not in shown
        for log in logs:
            assert secret not in log.read_text(errors="replace"), log


def _logs(folder: Path) -> list[Path]:
    names = ("*.log", "*.out", "*.err", "log")
    return [path for name in names for path in folder.rglob(name) if path.is_file()]
