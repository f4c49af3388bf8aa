"""A training run whose checkpoints lie on an object store, killed and gone on with."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.store import Artifact
from tests.integration.object_stores import BUCKET, keys_below, s3_server

pytestmark = pytest.mark.slow

STORE = f"s3://{BUCKET}/a store"

TRAINING = """
import json, os, signal, sys
from pipelines.store import ArtifactStore
from pipelines.stages.pretraining.stage import build_encoder
from pipelines.stage import StageContext
from pipelines.stages.pretraining.settings import PretrainingSettings

data, examples, vocabulary, store, kill_at = sys.argv[1:]

def observe(progress):
    if progress.done >= float(kill_at):
        os.kill(os.getpid(), signal.SIGKILL)

inputs = ArtifactStore(data)
settings = PretrainingSettings(size="tiny", num_steps=60, global_batch_size=8,
    micro_batch_size=4, log_every_steps=1, evaluate_every_steps=30, checkpoint_every_steps=10)
encoder = build_encoder(settings, inputs.find("examples", examples),
    inputs.find("vocabulary", vocabulary),
    StageContext(store=ArtifactStore(store), observe=observe))
print(json.dumps({"resumed_from": encoder.statistics["resumed_from"], "reused": encoder.reused,
    "weights": encoder.manifest.files["model.safetensors"].sha256,
    "folder": sorted(path.name for path in encoder.local_folder().iterdir())}))
"""


def test_a_killed_training_goes_on_from_its_checkpoint_on_s3(
    small_examples: Artifact, small_vocabulary: Artifact, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BERTSMITH_CACHE", str(tmp_path / "cache"))

    def train(store: str, kill_at: float) -> subprocess.CompletedProcess[str]:
        data = str(Path(small_examples.root).parents[1])
        names = [small_examples.fingerprint, small_vocabulary.fingerprint]
        return subprocess.run(
            [sys.executable, "-c", TRAINING, data, *names, store, str(kill_at)],
            env=dict(os.environ),
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )

    with s3_server(monkeypatch):
        killed = train(STORE, kill_at=35)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        left = keys_below("a store/encoder/.work-")
        assert [key for key in left if "/checkpoint_" in key], left
        resumed = train(STORE, kill_at=1000)
        assert resumed.returncode == 0, resumed.stderr
        assert not keys_below("a store/encoder/.work-")
    found = json.loads(resumed.stdout.splitlines()[-1])
    (step,) = found["resumed_from"]
    assert step in range(10, 60, 10)  # which one depends on how soon the kill arrives
    assert {"config.json", "model.safetensors", "vocab.txt"} <= set(found["folder"])

    undisturbed = train(str(tmp_path / "store"), kill_at=1000)
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert json.loads(undisturbed.stdout.splitlines()[-1])["weights"] == found["weights"]
