"""Two processes build one artifact of an object store at once: one wins, the other finds it."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pipelines.errors import UserError
from pipelines.store import Artifact, ArtifactStore, Built, Draft
from tests.integration.object_stores import BUCKET, keys_below, s3_server

STORE = f"s3://{BUCKET}/store"

# Reads one request a line: which artifact, and how long to pause before each file (null: until the
# next line).
BUILDER = """
import json, os, sys, time
from pipelines.store import ArtifactStore, Built
store = ArtifactStore(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    def build(draft):
        names = [f"train-{number}" for number in range(3)]
        for name, pause in zip(names, request["pauses"]):
            sys.stdin.readline() if pause is None else time.sleep(pause)
            with draft.file(name) as file:  # as of a training run: other bytes in any process
                file.path.write_text(f"{name} of {os.getpid()}")
            print("wrote", name, flush=True)
        sys.stdin.readline() if request["pauses"][3] is None else time.sleep(request["pauses"][3])
        return Built(names, {"builder": os.getpid()})
    artifact = store.get_or_build(
        "thing", version=1, settings={"number": request["number"]}, inputs={}, build=build)
    texts = [artifact.local(name).read_text() for name in artifact.names()]
    print(json.dumps({"texts": texts, "manifest": artifact.manifest.model_dump(),
                      "reused": artifact.reused}), flush=True)
"""


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, str]]:
    monkeypatch.setenv("BERTSMITH_CACHE", str(tmp_path / "cache"))
    with s3_server(monkeypatch) as environment:
        yield environment


class Builder:
    """A process that builds what it is told to."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", BUILDER, STORE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=dict(os.environ),
        )
        assert self.line() == "ready"

    def ask(self, number: int, pauses: Sequence[float | None]) -> None:
        self._write(json.dumps({"number": number, "pauses": pauses}))

    def go_on(self) -> None:
        """End a pause that waits for a line."""
        self._write("")

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def answer(self) -> dict:
        while not (line := self.line()).startswith("{"):
            assert line, self.process.communicate()[1]
        return json.loads(line)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def builders(environment: dict[str, str]) -> Iterator[list[Builder]]:
    pair = [Builder(), Builder()]
    yield pair
    for builder in pair:
        builder.end()


def _interleave(builders: list[Builder], number: int) -> set[bool]:
    """Both builders at one artifact; whatever their order, what they find is one whole thing."""
    chance = random.Random(number)
    for builder in builders:
        builder.ask(number, [chance.choice([0, 0, 0.005, 0.02, 0.06]) for _ in range(4)])
    answers = [builder.answer() for builder in builders]
    assert answers[0]["manifest"] == answers[1]["manifest"]
    manifest = answers[0]["manifest"]
    assert sorted(manifest["files"]) == ["train-0", "train-1", "train-2"]
    winner = manifest["statistics"]["builder"]
    whole = [f"train-{index} of {winner}" for index in range(3)]
    assert [answer["texts"] for answer in answers] == [whole, whole]
    # Nothing of the loser stays: three files and the manifest.
    left = keys_below("store/thing/")
    assert len([key for key in left if manifest["fingerprint"] in key]) == 4, left
    assert not [key for key in left if ".work" in key], left
    return {answer["reused"] for answer in answers}


def test_two_builders_one_winner(builders: list[Builder]) -> None:
    for number in range(8):
        assert _interleave(builders, number) == {True, False}


def _build(store: ArtifactStore, build: Callable[[Draft], Built]) -> Artifact:
    return store.get_or_build("thing", version=1, settings={"number": 0}, inputs={}, build=build)


def test_a_killed_build_goes_on_at_once(environment: dict[str, str]) -> None:
    killed = Builder()
    killed.ask(0, [0, 0, 60, 0])
    assert [killed.line(), killed.line()] == ["wrote train-0", "wrote train-1"]
    os.kill(killed.process.pid, signal.SIGKILL)
    written = []

    def go_on(draft: Draft) -> Built:
        names = [f"train-{number}" for number in range(3)]
        for name in names:
            if draft.finished(name) is None:
                written.append(name)
                draft.write(name, f"{name} of the second".encode())
        return Built(names, {})

    artifact = _build(ArtifactStore(STORE), go_on)
    killed.end()
    assert written == ["train-2"]
    assert artifact.local("train-0").read_text() == f"train-0 of {killed.process.pid}"
    assert not keys_below("store/thing/.work-")


@pytest.mark.parametrize("asleep_before", [1, 3], ids=["a file", "publishing"])
def test_a_builder_that_wakes_after_another_has_published_changes_nothing(
    environment: dict[str, str], asleep_before: int
) -> None:
    late = Builder()
    late.ask(0, [None if number == asleep_before else 0 for number in range(4)])
    for number in range(asleep_before):
        assert late.line() == f"wrote train-{number}"

    def build(draft: Draft) -> Built:
        draft.write("train-0", b"of the second")
        return Built(["train-0"], {})

    published = _build(ArtifactStore(STORE), build)
    late.go_on()
    answer = late.answer()
    late.end()
    assert answer["reused"]
    assert answer["manifest"] == published.manifest.model_dump()
    assert answer["texts"] == ["of the second"]
    assert len(keys_below("store/thing/")) == 2  # the manifest and the file


def test_a_builder_whose_work_is_gone_returns_what_another_has_published(
    environment: dict[str, str],
) -> None:
    def build(draft: Draft) -> Built:
        draft.workspace().write("counts", b"12")
        _build(ArtifactStore(STORE), lambda draft: Built([], {}))
        draft.workspace().read("counts")  # removed by whoever published
        raise AssertionError("it was there")

    assert _build(ArtifactStore(STORE), build).reused
    assert len(keys_below("store/thing/")) == 1


def test_a_missing_file_is_an_error_and_nothing_is_published(environment: dict[str, str]) -> None:
    def build_without(draft: Draft) -> Built:
        draft.write("train-0", b"here")
        return Built(["train-0", "train-1"], {})

    with pytest.raises(RuntimeError, match="did not finish train-1"):
        _build(ArtifactStore(STORE), build_without)
    assert not [key for key in keys_below("store/thing/") if "manifest" in key]


def test_a_missing_bucket_is_told_by_its_code(environment: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"s3://nowhere/store cannot be used: .* check its address"):
        _build(ArtifactStore("s3://nowhere/store"), lambda draft: Built([], {}))
    assert ArtifactStore(f"s3://{BUCKET}/a bucket").find("thing", "0" * 32) is None
