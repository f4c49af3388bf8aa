"""A killed training run goes on from its newest whole checkpoint, and ends with the same bits."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pytest

from pipelines.store import Artifact
from tests.command_line import last_object
from tests.integration.object_stores import BUCKET, s3_server

pytestmark = pytest.mark.slow

TRAINING = """
import json, os, signal, sys
from pipelines.store import ArtifactStore
from pipelines.settings import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.stage import build_encoder

data, examples, vocabulary, store, kill_at = sys.argv[1:]
notes = []

def observe(progress):
    notes.append(progress.note)
    if progress.done >= float(kill_at):
        os.kill(os.getpid(), signal.SIGKILL)

inputs = ArtifactStore(data)
settings = PretrainingSettings(size="tiny", num_steps=40, global_batch_size=8,
    micro_batch_size=4, log_every_steps=1, evaluate_every_steps=30, checkpoint_every_steps=5)
encoder = build_encoder(settings, inputs.find("examples", examples),
    inputs.find("vocabulary", vocabulary),
    StageContext(store=ArtifactStore(store), observe=observe,
                 runtime=RuntimeSettings(training_workers=1)))
print(json.dumps({"resumed_from": encoder.statistics["resumed_from"], "notes": notes,
    "files": {name: encoder.manifest.files[name].sha256
              for name in ("model.safetensors", "history.json")}}))
"""


def train(
    store: str, examples: Artifact, vocabulary: Artifact, kill_at: float
) -> "subprocess.CompletedProcess[str]":
    data = str(Path(examples.root).parents[1])
    return subprocess.run(
        [sys.executable, "-c", TRAINING, data, examples.fingerprint, vocabulary.fingerprint,
         store, str(kill_at)],
        env=dict(os.environ), capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip


def whole_checkpoints(filesystem: fsspec.AbstractFileSystem, store: str) -> list[str]:
    """Folders of the complete ones, the newest last, once nobody writes there any more."""
    before: list[str] = []
    for _ in range(60):
        time.sleep(2)
        files = sorted(filesystem.find(store))
        if files and files == before:
            break
        before = files
    ends = "/checksums.json"
    return sorted(path.removesuffix(ends) for path in before if path.endswith(ends))


@pytest.fixture(scope="module")
def undisturbed(
    small_examples: Artifact, small_vocabulary: Artifact, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The digests that a run ends with which nothing befell."""
    store = str(tmp_path_factory.mktemp("undisturbed"))
    trained = train(store, small_examples, small_vocabulary, kill_at=1000)
    assert trained.returncode == 0, trained.stderr
    return dict(last_object(trained.stdout)["files"])


@pytest.mark.parametrize(("kind", "damage"), [("a folder", "a bit"), ("s3", "its end is gone")])
def test_a_killed_run_goes_on_from_the_newest_whole_one_and_ends_with_the_same_bits(
    small_examples: Artifact, small_vocabulary: Artifact, undisturbed: dict[str, str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, damage: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("BERTSMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with s3_server(monkeypatch):
        store = str(tmp_path / "a store") if kind == "a folder" else f"s3://{BUCKET}/a store"
        filesystem, root = fsspec.core.url_to_fs(store, use_listings_cache=False)
        killed = train(store, small_examples, small_vocabulary, kill_at=22)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        *_, older, newest = whole_checkpoints(filesystem, f"{root}/encoder")
        steps = [int(path.rpartition("checkpoint_")[2][:9]) for path in (older, newest)]
        assert steps[0] < steps[1]

        weights = f"{newest}/model/model.safetensors"
        data = bytearray(filesystem.cat_file(weights))
        if damage == "a bit":
            data[len(data) // 2] ^= 1
        filesystem.pipe_file(weights, bytes(data[:-1000] if "end" in damage else data))

        resumed = train(store, small_examples, small_vocabulary, kill_at=1000)
        assert resumed.returncode == 0, resumed.stderr
        assert not [path for path in filesystem.find(root) if "/.work-" in path]
    outcome = last_object(resumed.stdout)
    assert outcome["resumed_from"] == [steps[0]]
    said = f"the checkpoint of step {steps[1]} is damaged (model/model.safetensors has "
    warnings = [note for note in outcome["notes"] if said in note and "the previous one" in note]
    assert len(warnings) == 1
    assert outcome["files"] == undisturbed
