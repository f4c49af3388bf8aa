"""A task of a user's own on two nodes that share nothing but `s3://`, through the command line."""

import json
import os
import subprocess
from pathlib import Path

import boto3
import pyarrow.parquet as pq
import pytest
import torch

from bert_core.model.catalogue import PretrainingModel
from bert_core.training.state import save_model
from bert_core.vocabulary import WordPieceTokenizer
from tests.command_line import BERTSMITH
from tests.integration.object_stores import BUCKET, keys_below, s3_server
from tests.integration.raylets import raylets
from tests.integration.recorded_training import ROOT
from tests.pipelines.tasks.letters import CONFIG, TOKENS
from tests.pipelines.tasks.own_task import ranking, write_rows

pytestmark = pytest.mark.slow

SETTINGS = (
    "finetuning.num_epochs=4", "finetuning.learning_rate=1e-3", "finetuning.num_evaluations=1",
    "finetuning.compare_with_random=false",
)  # fmt: skip


def bertsmith(*arguments: str, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [*BERTSMITH, *arguments, "--home", str(folder / "home")],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def trained(folder: Path, store: str, *cpus: int, answers: int = 0) -> str:
    """The screen of a run on nodes with so many CPUs; its model answers so many requests there.

    The task's file is gone when they are answered.
    """
    torch.manual_seed(0)
    save_model(folder / "encoder", PretrainingModel(CONFIG))
    WordPieceTokenizer(TOKENS).save(folder / "encoder")
    code = folder / "ranking.py"
    code.write_text(ranking(), encoding="utf-8")
    write_rows(folder / "rows.jsonl", 240)
    write_rows(folder / "requests.jsonl", answers, seed=1)
    own = {
        "BERTSMITH_CACHE": str(folder / "cache"), "BERTSMITH_STORE": store, "HOME": str(folder),
    }  # fmt: skip
    options = [word for each in SETTINGS for word in ("--set", each)]
    with raylets() as cluster:  # whose head computes nothing
        cluster.join_all(*cpus)
        screen = bertsmith(
            "run", "--encoder", "encoder", "--labels", "rows.jsonl", "--task", "ranking.py",
            "--training-workers", "2", *options,
            folder=folder, **own, **cluster.driver_env,
        )  # fmt: skip
        code.unlink()
        if not answers:
            return screen
        bertsmith(
            "predict", "--model", "own-task/1", "--batch", "requests.jsonl", "--to", "answers",
            folder=folder, **own, **cluster.driver_env,
        )  # fmt: skip
    return screen


def test_two_nodes_make_the_model_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    two.mkdir()
    one.mkdir()
    with s3_server(monkeypatch):
        store = f"s3://{BUCKET}/store"
        screen = trained(two, store, 1, 1, answers=30)
        assert pq.read_table(two / "answers").num_rows == 30
        assert "models:/own-task/1, loaded in a fresh process, reproduced its held-out" in screen
        assert not [key for key in keys_below("store/") if ".work" in key]
        assert [key for key in keys_below("store/finetuned/") if key.endswith("/task.py")]
        trained(one, str(one / "store"), 2)
        ((fingerprint, digest),) = weights_in(one / "store")
        key = f"store/finetuned/{fingerprint}/manifest.json"
        told = boto3.client("s3").get_object(Bucket=BUCKET, Key=key)["Body"].read()
        assert json.loads(told)["files"]["model.safetensors"]["sha256"] == digest


def weights_in(store: Path) -> list[tuple[str, str]]:
    """Fingerprint and weights' SHA-256 of each fine-tuned model."""
    return [
        (path.parent.name, json.loads(path.read_text())["files"]["model.safetensors"]["sha256"])
        for path in store.glob("finetuned/*/manifest.json")
    ]
