"""Two processes build one artifact of an object store at once: one wins, the other finds it."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import boto3
import pytest
from s3fs import S3FileSystem

from pipelines.artifacts import Artifact, ArtifactStore, Built, Draft
from pipelines.artifacts.claims import ClaimLostError, claimed, remove
from tests.integration.busy_stores import busy_store
from tests.integration.object_stores import BUCKET, keys_below, s3_server

STORE = f"s3://{BUCKET}/store"

# Reads one request a line: which artifact, and how long to pause before each file (null: until the
# next line).
BUILDER = """
import json, os, sys, time
from pipelines.artifacts import ArtifactStore, Built
store = ArtifactStore(sys.argv[1], lease_seconds=float(sys.argv[2]))
print("ready", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    def build(draft):
        names = [f"train-{number}" for number in range(3)]
        for name, pause in zip(names, request["pauses"]):
            sys.stdin.readline() if pause is None else time.sleep(pause)
            if draft.finished(name) is None:
                with draft.file(name) as file:  # as of a training run: other bytes in any process
                    file.path.write_text(f"{name} of {os.getpid()}")
                print("wrote", name, flush=True)
        time.sleep(request["pauses"][3])
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

    def __init__(self, lease_seconds: float = 60.0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", BUILDER, STORE, str(lease_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=dict(os.environ),
        )
        assert self.said() == "ready"

    def ask(self, number: int, pauses: Sequence[float | None]) -> None:
        self._write(json.dumps({"number": number, "pauses": pauses}))

    def go_on(self) -> None:
        """End a pause that waits for a line."""
        self._write("")

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def answer(self) -> dict:
        while not (line := self.said()).startswith("{"):
            assert line, "the builder ended without an answer"
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
    for number in range(4):
        assert _interleave(builders, number) == {True, False}


@pytest.mark.slow
def test_two_builders_one_winner_in_a_hundred_interleavings(builders: list[Builder]) -> None:
    for number in range(100):
        assert _interleave(builders, number) == {True, False}


def test_a_killed_build_goes_on_in_its_own_attempt_at_once(environment: dict[str, str]) -> None:
    killed = Builder()
    killed.ask(0, [0, 0, 60, 0])
    assert [killed.said(), killed.said()] == ["wrote train-0", "wrote train-1"]
    os.kill(killed.process.pid, signal.SIGKILL)
    attempt = {key.split("/")[3] for key in keys_below("store/thing/.work-")}
    written = []

    def go_on(draft: Draft) -> Built:
        assert draft.claim is not None
        assert {draft.claim.attempt} == attempt
        names = [f"train-{number}" for number in range(3)]
        for name in names:
            if draft.finished(name) is None:
                written.append(name)
                with draft.file(name) as file:
                    file.path.write_text(f"{name} of the second")
        return Built(names, {})

    artifact = _build(ArtifactStore(STORE), go_on)
    killed.end()
    assert written == ["train-2"]
    assert artifact.local("train-0").read_text() == f"train-0 of {killed.process.pid}"
    assert not keys_below("store/thing/.work-")


def test_a_second_builder_beside_a_live_one_has_an_attempt_of_its_own(
    environment: dict[str, str],
) -> None:
    first = Builder()
    first.ask(0, [0, None, 0, 0])
    assert first.said() == "wrote train-0"

    def build(draft: Draft) -> Built:
        assert draft.finished("train-0") is None
        assert len({key.split("/")[3] for key in keys_below("store/thing/.work-")}) == 2
        with draft.file("train-0") as file:
            file.path.write_text("of the second")
        return Built(["train-0"], {})

    second = _build(ArtifactStore(STORE), build)
    first.go_on()
    found = first.answer()
    first.end()
    assert second.names() == ["train-0"]  # it was first to finish; what it says is what there is
    assert found["manifest"] == second.manifest.model_dump()
    assert found["reused"]


def test_a_builder_that_fell_silent_is_followed_and_then_writes_no_more(
    environment: dict[str, str],
) -> None:
    """Another machine's builder that stops for longer than its lease, and wakes up again."""
    silent = Builder(lease_seconds=1.0)
    silent.ask(0, [0, 1, 0, 0])
    assert silent.said() == "wrote train-0"
    os.kill(silent.process.pid, signal.SIGSTOP)
    _pretend_another_machine()
    time.sleep(3)  # S3 dates objects to the second

    def go_on(draft: Draft) -> Built:
        assert draft.finished("train-0") is not None
        os.kill(silent.process.pid, signal.SIGCONT)
        _, error = silent.process.communicate(timeout=60)
        assert silent.process.returncode != 0
        assert "another one has taken over its work" in error
        return Built(["train-0"], {})

    artifact = _build(ArtifactStore(STORE, lease_seconds=1.0), go_on)
    assert artifact.names() == ["train-0"]
    assert len(keys_below("store/thing/")) == 2  # the manifest and the file


def test_a_builder_that_wakes_after_its_successor_has_finished_writes_no_more(
    tmp_path: Path,
) -> None:
    store = ArtifactStore(f"memory://{tmp_path.name}/store")
    files, work = store.filesystem, f"{store.root}/thing/.work"
    with pytest.raises(ClaimLostError), claimed(files, work, 60.0, {}) as claim:
        claim.check()
        remove(files, claim.folder)  # as its successor does at its end
        claim.check()
    assert not files.exists(claim.folder)


def test_a_process_that_could_not_release_its_attempt_in_an_outage_continues_it(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with busy_store(environment["AWS_ENDPOINT_URL"]) as busy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", busy.url)
        S3FileSystem.clear_instance_cache()
        store = ArtifactStore(STORE)

        def fail(draft: Draft) -> Built:
            draft.write("train-0", b"of the first try")
            busy.be_busy(600)
            raise OSError("the store is away")

        def go_on(draft: Draft) -> Built:
            assert draft.finished("train-0") is not None
            return Built(["train-0"], {})

        with pytest.raises(OSError, match="the store is away"):
            _build(store, fail)
        busy.be_busy(0)
        assert _build(store, go_on).local("train-0").read_bytes() == b"of the first try"


def test_files_are_published_as_the_build_says_and_a_missing_one_is_an_error(
    environment: dict[str, str],
) -> None:
    def build_without(draft: Draft) -> Built:
        with draft.file("train-0") as file:
            file.path.write_text("here")
        return Built(["train-0", "train-1"], {})

    with pytest.raises(RuntimeError, match="did not finish train-1"):
        _build(ArtifactStore(STORE), build_without)
    assert not [key for key in keys_below("store/thing/") if "manifest" in key]


def _build(store: ArtifactStore, build) -> Artifact:
    build.__module__ = "no file"  # as the builders' own: what one code began another leaves alone
    return store.get_or_build("thing", version=1, settings={"number": 0}, inputs={}, build=build)


def _pretend_another_machine() -> None:
    client = boto3.client("s3")
    (key,) = [key for key in keys_below("store/thing/.work-") if "/.owners/" in key]
    record = json.loads(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
    record["owner"]["machine"] = "elsewhere"
    client.put_object(Bucket=BUCKET, Key=key, Body=json.dumps(record).encode())
