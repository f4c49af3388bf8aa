"""The image's entry point: the first process of a container, and a Ray node beside the command."""

import os
import shutil
import signal
import subprocess
import sys
import time
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
    """Enters with a node that starts with these ports; ends what is left."""
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
    asked = (tmp_path / "asked").read_text().split()
    assert asked[:3] == ["start", "--address=ray-head:6379", "--num-cpus=0"]
    assert asked[-1] == "--block"
    assert process.poll() is None
    (tmp_path / "stop").touch()
    said = process.communicate(timeout=240)[1]
    assert process.returncode == -signal.SIGTERM
    assert "some Ray subprocesses exited\nthe Ray node beside the command has ended" in said


def test_a_command_whose_node_does_not_start_is_not_begun(entered: Entered) -> None:
    process = entered(REFUSED)
    out, said = process.communicate(timeout=240)
    assert process.returncode != 0
    assert out == ""
    assert "the token is wrong" in said


@pytest.fixture(scope="module")
def first_process() -> list[str]:
    """What makes a command the first process of a namespace, as it is in a container."""
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], check=False).returncode:
        pytest.skip("a first process has a namespace of its own, and none may be made here")
    if shutil.which("tini") is None:
        pytest.skip("Debian's tini is the first process of the image, and there is none here")
    return words


def ask_to_stop(process: "subprocess.Popen[str]") -> None:
    """SIGTERM to the first process of the namespace that `process` made."""
    (first,) = psutil.Process(process.pid).children()
    first.send_signal(signal.SIGTERM)


def wait_for(path: Path, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 240
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("is_begun", [True, False], ids=["begun", "waits for its node"])
def test_a_container_that_is_told_to_go_goes(
    first_process: list[str], tmp_path: Path, is_begun: bool
) -> None:
    program = tmp_path / "ray"  # a node that never comes up
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/there\nexec sleep 300")
    program.chmod(0o755)
    head = {} if is_begun else {"BERTSMITH_RAY_HEAD": "ray-head:6379"}
    process = subprocess.Popen(
        [*first_process, INFRA / "entrypoint.sh", "sh", "-c", f"touch {tmp_path}/there; sleep 300"],
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", **head},
        text=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        wait_for(tmp_path / "there", process)
        ask_to_stop(process)
        assert process.wait(timeout=240) == 128 + signal.SIGTERM
    finally:
        process.kill()


@pytest.mark.slow
def test_a_node_of_ray_that_is_killed_takes_the_command_along() -> None:
    from tests.integration.raylets import Raylets, raylets

    def begun(cluster: Raylets) -> "subprocess.Popen[str]":
        """The command and its node; on a busy machine a raylet may give up, and another starts."""
        for tries_left in (2, 1, 0):
            process = entry_point(
                **cluster.driver_env,
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
