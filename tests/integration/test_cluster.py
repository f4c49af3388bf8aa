"""A head and two nodes that share nothing but `s3://`; one of them is lost in every part."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.command_line import last_object
from tests.integration.object_stores import BUCKET, keys_below, s3_server
from tests.integration.raylets import Raylets, raylets
from tests.integration.recorded_training import (
    Outcome,
    TrainingRun,
    batches_by_step,
    step_starts,
    wait_for_step,
)
from tests.pipelines.small_data import invented_text

pytestmark = pytest.mark.slow

STORE = f"s3://{BUCKET}/store"
NUM_STEPS = 60
LOST_AT_STEP = 25
SETTINGS: dict[str, Any] = {
    "size": "tiny",
    "num_steps": NUM_STEPS,
    "global_batch_size": 16,
    "micro_batch_size": 4,
    "log_every_steps": 1,
    "evaluate_every_steps": 30,
    "checkpoint_every_steps": 10,
    "evaluation_examples": 32,
    "final_evaluation_examples": 32,
    "precision": "float32",
}
DATA_STAGES = """
import json, sys
from pipelines.store import ArtifactStore
from pipelines.settings import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.stages.corpus.settings import CorpusSettings, TextFiles
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.examples.stage import ExampleSettings, build_examples
from pipelines.stages.vocabulary.stage import VocabularySettings, build_vocabulary

context = StageContext(
    store=ArtifactStore(sys.argv[1]), runtime=RuntimeSettings(num_workers=int(sys.argv[2])),
    observe=lambda progress: print("progress of", progress.stage, flush=True),
)
texts = TextFiles(paths=("s3://bertsmith/texts/*.txt",))
corpus = build_corpus(
    CorpusSettings(sources=(texts,), shard_megabytes=0.01, heldout_fraction=0.2), context)
vocabulary = build_vocabulary(VocabularySettings(size=200), corpus, context)
examples = build_examples(
    ExampleSettings(max_tokens=64, shard_tokens=1000), corpus, vocabulary, context)
print(json.dumps({
    artifact.kind: [artifact.fingerprint, {n: f.sha256 for n, f in artifact.manifest.files.items()}]
    for artifact in (corpus, vocabulary, examples)
}))
"""


@pytest.fixture(scope="module")
def object_store() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch, s3_server(monkeypatch):
        for number in range(40):
            text = invented_text(number, 40).encode()
            boto3.client("s3").put_object(Bucket=BUCKET, Key=f"texts/t{number:02d}.txt", Body=text)
        yield


@pytest.fixture(scope="module")
def cluster(object_store: None) -> Iterator[Raylets]:
    """A head without CPUs; each test brings its nodes."""
    with raylets() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of the drivers, which have folders of their own like the nodes."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "home").mkdir()
    return {"HOME": str(folder / "home"), "BERTSMITH_CACHE": str(folder / "cache")}


def data_stages(store: str, num_workers: int, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", DATA_STAGES, store, str(num_workers)],
        env={**os.environ, **environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def made_by(driver: "subprocess.Popen[str]") -> dict[str, Any]:
    said, complaints = driver.communicate(timeout=600)
    assert driver.returncode == 0, complaints
    made: dict[str, Any] = last_object(said)
    return made


@pytest.fixture(scope="module")
def made(cluster: Raylets, drivers: dict[str, str]) -> dict[str, Any]:
    """What the data stages made on two nodes, of which one was lost."""
    _, lost = cluster.join_all(2, 2)
    driver = data_stages(STORE, 4, **drivers, **cluster.driver_env)
    assert driver.stdout is not None
    for line in driver.stdout:
        if line == "progress of corpus\n":
            break
    assert driver.poll() is None, "the corpus was made before a node could be lost"
    cluster.lose(lost)
    return made_by(driver)


def test_the_data_stages_make_the_bytes_of_one_machine(
    made: dict[str, Any], drivers: dict[str, str], tmp_path: Path
) -> None:
    assert sorted(made) == ["corpus", "examples", "vocabulary"]
    assert not [key for key in keys_below("store/") if ".work" in key]
    alone = made_by(data_stages(str(tmp_path / "store"), 1, **drivers))
    assert alone == made


def training(made: dict[str, Any], store: str, record: Path, **more: Any) -> TrainingRun:
    return TrainingRun(
        data=STORE, examples=made["examples"][0], vocabulary=made["vocabulary"][0], store=store,
        record=str(record), workers=2, threads=2, settings=SETTINGS, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def alone(
    made: dict[str, Any], drivers: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Outcome:
    """What the training run ends with on one node of four CPUs, with a folder as the store."""
    folder = tmp_path_factory.mktemp("alone")
    with raylets(4) as one_node:
        job = training(made, f"{folder}/store", folder / "notes")
        return Outcome.of(job.start(**drivers, **one_node.driver_env))


def test_a_training_on_two_nodes_ends_with_the_bits_of_one_machine(
    made: dict[str, Any], alone: Outcome, cluster: Raylets, drivers: dict[str, str], tmp_path: Path
) -> None:
    while len(cluster.nodes) < 2:
        cluster.join(2)
    job = training(made, f"{STORE}2", tmp_path, slow_seconds=0.5)
    driver = job.start(**drivers, **cluster.driver_env)
    met = wait_for_step(driver, tmp_path, lambda b: b.step >= LOST_AT_STEP)
    assert met.num_ranks == 2
    cluster.lose(cluster.nodes[-1])
    cluster.join(2)
    job.hurry()
    outcome = Outcome.of(driver)
    assert len(outcome.resumed_from) == 1
    assert outcome.resumed_from[0] <= LOST_AT_STEP + 5
    assert outcome.history == alone.history
    assert outcome.weights == alone.weights
    noted = step_starts(tmp_path)
    assert {len({b.process for b in noted if b.at <= met.at}), met.num_ranks} == {2}
    assert all(
        len(digests) == 1 for step in batches_by_step(noted).values() for digests in step.values()
    )
