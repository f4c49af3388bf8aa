"""A registered model over HTTP: by `mlflow models serve`, from a package alone, and by `serve`."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from bert_core.config import EncoderConfig
from bert_core.vocabulary import WordPieceTokenizer
from flows.cli.app import DONE, run
from flows.local.health import answers, free_port
from pipelines.registry.register import Submission, register
from pipelines.store import Artifact, ArtifactStore, Built, Draft
from pipelines.tasks import family
from pipelines.tracking.tracker import Tracker
from tests.pipelines.registry.conftest import write_model

pytestmark = pytest.mark.slow

LABELS = {"classification": ("bad", "good"), "tagging": ("O", "B-x", "I-x")}
ASKED: dict[str, dict[str, Any]] = {
    "classification": {"text": "a good sum"},
    "tagging": {"text": "Ada wrote to Charles."},
    "question_answering": {"question": "Who wrote?", "context": "Ada wrote to Charles."},
}


LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *LETTERS, *(f"##{x}" for x in LETTERS)]


def untrained(folder: Path, name: str) -> Artifact:
    """A model of the family with random weights, as fine-tuning leaves it."""

    def build(draft: Draft) -> Built:
        torch.manual_seed(0)
        config = EncoderConfig(
            vocab_size=len(TOKENS), hidden_size=32, num_layers=1, num_attention_heads=2,
            intermediate_size=64, max_position_embeddings=64,
        )  # fmt: skip
        model = family(name).build_model(config, LABELS.get(name, ()))
        files = write_model(draft, model.eval(), WordPieceTokenizer(TOKENS))
        score = family(name).score
        return Built(files, {"score": score, score: 0.0})

    return ArtifactStore(folder / "store").get_or_build(
        "finetuned", version=1, settings={"family": name}, inputs={}, build=build
    )


@contextmanager
def server(tracker: Tracker, uri: str, log: Path) -> Iterator[str]:
    """The address of `mlflow models serve`, which ends with the block."""
    port = free_port()
    paths = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # uvicorn
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "models", "serve", "-m", uri, "-p", str(port),
             "-h", "127.0.0.1", "--env-manager", "local"],
            env={**os.environ, "MLFLOW_TRACKING_URI": tracker.uri, "PYTHONPATH": "",
                 "PATH": paths},
            cwd=log.parent, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            address = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + 240
            while time.monotonic() < deadline and process.poll() is None:
                try:
                    urllib.request.urlopen(f"{address}/ping", timeout=5).read()
                    break
                except (urllib.error.URLError, ConnectionError, TimeoutError):
                    time.sleep(0.5)
            yield address
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=30)


def answered(address: str, row: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{address}/invocations",
        data=json.dumps({"dataframe_records": [row]}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        (answer,) = json.load(response)["predictions"]
    return answer


@pytest.mark.parametrize("name", ASKED)
def test_a_served_model_answers(tracker: Tracker, tmp_path: Path, name: str) -> None:
    submission = Submission(
        kind=name, name=f"served-{name}", alias="candidate", artifact=untrained(tmp_path, name),
        lineage={}, recipe_yaml="name: small\n",
    )  # fmt: skip
    model = register(submission, tracker)
    log = tmp_path / "serve.log"
    with server(tracker, model.uri, log) as address:
        try:
            answer = answered(address, ASKED[name])
        except (urllib.error.URLError, ConnectionError) as error:
            pytest.fail(f"{error}\n{log.read_text()[-3000:]}")
        with pytest.raises(urllib.error.HTTPError) as refused:
            answered(address, dict.fromkeys(ASKED[name]))
        assert refused.value.code == 400
        said = json.loads(refused.value.read())
        assert "found none in row 0" in said["message"]
        assert "Traceback" not in json.dumps(said)
        if name == "tagging":
            split = answered(address, {"words": ["Ada", "wrote,to"]})
            assert split["words"] == ["Ada", "wrote,to"]
            assert len(split["tags"]) == 2
    if name == "classification":
        assert answer["label"] in LABELS[name]
        assert 0.5 <= answer["probability"] <= 1
    elif name == "tagging":
        assert answer["words"] == ["Ada", "wrote", "to", "Charles", "."]
        assert set(answer["tags"]) <= set(LABELS[name])
    else:
        context = ASKED[name]["context"]
        assert answer["answer"] == context[answer["begin"] :][: len(answer["answer"])]


@contextmanager
def command(uri: str, tracker: Tracker, home: Path, *options: str) -> Iterator[tuple[Any, str]]:
    """The process of `bertsmith serve`, which leads a group of its own, and its address."""
    port, log = free_port(), home / "serve.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", "from flows.cli import main; main()", "serve", uri,
             "--port", str(port), "--home", str(home), *options],
            env={**os.environ, "MLFLOW_TRACKING_URI": tracker.uri},
            stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and process.poll() is None:
            if answers(f"http://127.0.0.1:{port}/health"):
                break
            time.sleep(0.2)
        else:
            pytest.fail(log.read_text()[-3000:])
        yield process, f"http://127.0.0.1:{port}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)


def status_of(address: str, body: bytes) -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/invocations", data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=240) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as refused:
        return refused.code, json.loads(refused.read())


def table_of(texts: list[str]) -> bytes:
    return json.dumps({"dataframe_records": [{"text": text} for text in texts]}).encode()


def test_the_command_serves_many_clients_refuses_what_is_too_much_and_drains(
    tracker: Tracker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = untrained(tmp_path, "classification")
    submission = Submission(
        kind="classification", name="served", alias="candidate", artifact=artifact,
        lineage={}, recipe_yaml="name: small\n",
    )  # fmt: skip
    model = register(submission, tracker)
    texts = [" ".join(["a good sum of it"] * (1 + place % 7)) + f" {place}" for place in range(64)]
    assert run(["predict", *texts, "--json", "--model", str(artifact.local_folder())]) == DONE
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    with command("served@candidate", tracker, tmp_path, "--queue", "16") as (process, address):
        with ThreadPoolExecutor(16) as clients:
            found = list(clients.map(lambda text: status_of(address, table_of([text])), texts))
        assert {status for status, _ in found} == {200}
        for (_, said), row in zip(found, expected, strict=True):
            (answer,) = said["predictions"]
            assert answer["label"] == row["label"]
            assert answer["probability"] == pytest.approx(row["probability"], abs=1e-6)
        for body in (b"{", table_of([]), b'{"dataframe_records": [{"text": null}]}'):
            status, said = status_of(address, body)
            assert status == 400
            assert "\n" not in said["message"]
        with urllib.request.urlopen(f"{address}/health", timeout=60) as response:
            said = json.load(response)
            assert said == {"status": "ok", "model": model.uri, "precision": "float32"}

        heavy = table_of(texts * 16)
        with ThreadPoolExecutor(40) as clients:
            found = list(clients.map(lambda _: status_of(address, heavy), range(40)))
        statuses = [status for status, _ in found]
        assert set(statuses) == {200, 503}
        assert all(
            len(said["predictions"]) == len(texts) * 16 if status == 200
            else said["message"].startswith("16 requests wait already")
            for status, said in found
        )  # fmt: skip

        with ThreadPoolExecutor(1) as client:
            last = client.submit(status_of, address, heavy)
            time.sleep(0.2)
            os.killpg(process.pid, signal.SIGTERM)
            assert last.result(120)[0] == 200
        assert process.wait(timeout=60) == 0
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    with command("served@candidate", tracker, tmp_path, "--precision", "bf16") as (_, address):
        with urllib.request.urlopen(f"{address}/health", timeout=60) as response:
            assert json.load(response)["precision"] == "bf16"
        _, said = status_of(address, table_of(texts[:1]))
        (answer,) = said["predictions"]
        assert answer["probability"] == pytest.approx(expected[0]["probability"], abs=0.02)
