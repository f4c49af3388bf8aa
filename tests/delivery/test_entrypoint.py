"""The image's entry point with a Ray node beside the command: they begin and end together."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.delivery.declared import INFRA

# In place of Ray's program: a node that starts, or does not, and lives until a file is there.
NODE = """#!/bin/sh
echo "$@" > {folder}/asked
{start}
while [ ! -e {folder}/stop ]; do sleep 0.1; done
echo "some Ray subprocesses exited"
exit 1
"""
STARTS = 'sleep 0.5; echo "Ray runtime started."'
REFUSED = 'echo "the token is wrong"; exit 1'
COMMAND = 'echo "at $RAY_ADDRESS"; exec sleep 300'

Entered = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def entered(tmp_path: Path) -> Iterator[Entered]:
    """Enters with a node that starts as it is told; what is left is ended."""
    begun: list[subprocess.Popen[str]] = []

    def enter(start: str) -> "subprocess.Popen[str]":
        program = tmp_path / "ray"
        program.write_text(NODE.format(folder=tmp_path, start=start))
        program.chmod(0o755)
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        begun.append(entry_point(PATH=path, BERTSMITH_RAY_HEAD="ray-head:6379"))
        return begun[-1]

    yield enter
    (tmp_path / "stop").touch()
    for process in begun:
        process.kill()
        process.wait()


def entry_point(**environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        ["sh", INFRA / "entrypoint.sh", "sh", "-c", COMMAND],
        env={**os.environ, **environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def test_the_command_begins_once_its_node_has_started_and_ends_with_it(
    entered: Entered, tmp_path: Path
) -> None:
    process = entered(STARTS)
    assert process.stdout is not None
    assert process.stdout.readline() == "at ray-head:6379\n"
    assert (tmp_path / "asked").read_text() == (
        "start --address=ray-head:6379 --num-cpus=0 --block\n"
    )
    assert process.poll() is None
    (tmp_path / "stop").touch()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == -signal.SIGTERM
    assert "some Ray subprocesses exited\nthe Ray node beside the command has ended" in said


def test_a_command_whose_node_does_not_start_is_not_begun(entered: Entered) -> None:
    process = entered(REFUSED)
    out, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert out == ""
    assert "the token is wrong" in said


@pytest.mark.slow
def test_a_node_of_ray_that_is_killed_takes_the_command_along() -> None:
    from benchmarks.raylets import Raylets, raylets

    def begun(cluster: Raylets) -> "subprocess.Popen[str]":
        """The command and its node; on a busy machine a raylet may give up, and another starts."""
        for tries_left in (2, 1, 0):
            process = entry_point(
                **cluster.of_drivers,
                BERTSMITH_RAY_HEAD=cluster.address,
                PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="1",
            )
            assert process.stdout is not None
            if process.stdout.readline() == f"at {cluster.address}\n":
                break
            said = process.communicate()[1]
            assert tries_left, said
        return process

    with raylets() as cluster:
        process = begun(cluster)
        family = psutil.Process(process.pid).children(recursive=True)
        try:
            (raylet,) = [each for each in family if each.name() == "raylet"]
            raylet.kill()
            said = process.communicate(timeout=120)[1]
            assert process.returncode == -signal.SIGTERM
            assert "the Ray node beside the command has ended" in said
        finally:
            process.kill()
            for each in family:
                if each.is_running():
                    each.kill()
