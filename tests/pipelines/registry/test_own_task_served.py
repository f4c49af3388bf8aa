"""The page's own task from its file to an answer over HTTP, through the command line."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from bert_core.model.catalogue import PretrainingModel
from bert_core.training.state import save_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.settings import RuntimeSettings
from pipelines.stage import open_tracker
from tests.command_line import BERTSMITH
from tests.pipelines.registry.test_serving import answered, server
from tests.pipelines.tasks.letters import CONFIG, TOKENS
from tests.pipelines.tasks.own_task import ranking, write_rows

pytestmark = pytest.mark.slow

SMALL = (
    "finetuning.num_epochs=6", "finetuning.learning_rate=1e-3", "finetuning.num_evaluations=1",
    "finetuning.compare_with_random=false",
)  # fmt: skip
REQUEST = {"query": "e f g", "candidates": ["b c d", "d c a", "c b b"]}


def bertsmith(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BERTSMITH, *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(Path.cwd())}, capture_output=True,
        text=True, timeout=1800, check=False,
    )  # fmt: skip


def said(*arguments: str, folder: Path) -> str:
    done = bertsmith(*arguments, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_from_file_to_an_answer_over_http(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_model(tmp_path / "encoder", PretrainingModel(CONFIG))
    WordPieceTokenizer(TOKENS).save(tmp_path / "encoder")
    code = tmp_path / "ranking.py"
    code.write_text(ranking(), encoding="utf-8")
    write_rows(tmp_path / "rows.jsonl", 300)
    home = ("--home", str(tmp_path / "home"))
    options = [
        "--encoder", "encoder", "--labels", "rows.jsonl", "--task", "ranking.py",
        "--training-workers", "1", *home, *(word for each in SMALL for word in ("--set", each)),
    ]  # fmt: skip
    first = said("run", *options, folder=tmp_path)
    assert "models:/own-task/1, loaded in a fresh process, reproduced its held-out score" in first
    assert "- ranking: models:/own-task/1, now models:/own-task@champion" in first

    # Another file of the same name: a candidate, judged beside the champion with its own code.
    code.write_text(ranking().replace("cross_entropy(", "0.5 * cross_entropy("), encoding="utf-8")
    said("run", *options, folder=tmp_path)
    code.unlink()
    listed = said("models", *home, folder=tmp_path)
    assert listed.count("ranking") == 2
    (compared,) = (
        row["comparison"]
        for row in json.loads(said("models", "--json", *home, folder=tmp_path))
        if row["version"] == 2
    )
    assert "better than models:/own-task/1: reciprocal rank" in compared

    (line,) = said(
        "predict", REQUEST["query"], *REQUEST["candidates"], "--json",
        *home, folder=tmp_path,
    ).splitlines()  # fmt: skip
    answer = json.loads(line)
    assert answer["ranking"][0] == "d c a"
    (tmp_path / "requests.jsonl").write_text(json.dumps(REQUEST))
    ask = ("predict", "--model", "own-task/1", *home)
    (line,) = said(*ask, "--file", "requests.jsonl", "--json", folder=tmp_path).splitlines()
    assert json.loads(line)["ranking"] == answer["ranking"]
    # What the columns of one's own task hold is not known: they are printed as JSON.
    (line,) = said(*ask, "--file", "requests.jsonl", folder=tmp_path).splitlines()
    assert json.loads(line)["ranking"] == answer["ranking"]
    said(*ask, "--batch", "requests.jsonl", "--to", "ranked", folder=tmp_path)
    assert list((tmp_path / "ranked").rglob("*.parquet"))
    labels = ("--labels", "rows.jsonl", "--json")
    figures = json.loads(said("evaluate", "--model", "own-task/1", *labels, *home, folder=tmp_path))
    assert figures["items"] == 300
    assert figures["eval/reciprocal_rank"] > 0.8
    refused = bertsmith("export", "own-task/1", "--to", "out", *home, folder=tmp_path)
    assert refused.returncode == 2
    assert "found ranking; export its encoder alone (--pooling mean)" in refused.stderr

    tracker = open_tracker(RuntimeSettings(home=str(tmp_path / "home")))
    with server(tracker, "models:/own-task/1", tmp_path / "serve.log") as address:
        assert answered(address, REQUEST)["ranking"] == answer["ranking"]
