"""The sides of the serving benchmark: libraries in this process, and servers."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch

from bert_core.backends.context import Precision
from bert_core.hugging_face import import_model
from bert_core.inference.answers import classify
from bert_core.inference.pretrained import embed
from bert_core.vocabulary import WordPieceTokenizer
from flows.local.health import answers, free_port

CLIENTS = 16
BATCH = 32  # of the other libraries
READ_TOKENS = {"vectors": 256, "classes": 512}  # the published model truncates texts for vectors
EAGER = "transformers eager, float32"
SERVERS = (
    "bertsmith serve, float32", "bertsmith serve, bf16", "mlflow models serve, float32",
)  # fmt: skip
ONNX = ("ONNX Runtime, float32", "ONNX Runtime, int8")
SIDES = (
    "ours, float32", "ours, bf16", EAGER, "transformers eager, bf16",
    "transformers compiled, float32", "sentence-transformers, float32", *ONNX, *SERVERS,
)  # fmt: skip
Answer = Callable[[Sequence[str]], Any]


class Target(NamedTuple):
    """How to query a side with one text or all of them, and the process with its memory."""

    one: Callable[[str], Any]
    many: Callable[[Sequence[str]], list[float]]  # seconds of each request
    process: psutil.Process
    prepare: Callable[[], None] = lambda: None  # before one, and before many


def our_answer(side: str, use: str, folder: Path) -> Answer:
    model = import_model(folder).pack()
    tokenizer = WordPieceTokenizer.from_directory(folder)
    precision: Precision = "bf16" if "bf16" in side else "float32"
    ask = embed if use == "vectors" else classify
    return lambda texts: ask(model, tokenizer, texts, precision=precision)


def their_answer(side: str, use: str, folder: Path, threads: int) -> Answer:
    """`transformers` or ONNX Runtime: tokens by `AutoTokenizer`, then the model, then the mean."""
    from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    encode = partial(tokenizer, padding=True, truncation=True, max_length=READ_TOKENS[use])
    if side in ONNX:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        file = folder / ("int8.onnx" if "int8" in side else "float32.onnx")
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

        def answer_onnx(texts: Sequence[str]) -> np.ndarray:
            rows = dict(encode(list(texts), return_tensors="np"))
            (values,) = session.run(None, rows)
            if use == "classes":
                return values
            mask = rows["attention_mask"][:, :, None]
            mean = (values * mask).sum(axis=1)
            return mean / np.linalg.norm(mean, axis=1, keepdims=True)

        return answer_onnx
    opened: Any = AutoModel if use == "vectors" else AutoModelForSequenceClassification
    dtype = torch.bfloat16 if "bf16" in side else torch.float32
    model = opened.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()
    compute = torch.compile(model, dynamic=True) if "compiled" in side else model

    @torch.inference_mode()
    def answer(texts: Sequence[str]) -> np.ndarray:
        batch = encode(list(texts), return_tensors="pt")
        output = compute(**batch)
        if use == "classes":
            return output.logits.float().softmax(dim=-1).numpy()
        mask = batch["attention_mask"][:, :, None]
        mean = (output.last_hidden_state * mask).sum(dim=1).float() / mask.sum(dim=1)
        return torch.nn.functional.normalize(mean, dim=-1).numpy()

    return answer


def in_batches(answer: Answer, texts: Sequence[str]) -> None:
    """Answer texts sorted by length, so that there is little padding."""
    ordered = sorted(texts, key=len, reverse=True)
    for first in range(0, len(ordered), BATCH):
        answer(ordered[first : first + BATCH])


def target_in_process(side: str, use: str, folder: Path, threads: int) -> Target:
    torch.set_num_threads(threads)
    if side.startswith("ours"):
        answer = many = our_answer(side, use, folder)
    elif side.startswith("sentence"):
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(folder), device="cpu")
        answer = many = partial(model.encode, show_progress_bar=False)
    else:
        answer = their_answer(side, use, folder, threads)
        many = partial(in_batches, answer)

    def all_at_once(texts: Sequence[str]) -> list[float]:
        many(texts)
        return []

    return Target(lambda text: answer([text]), all_at_once, psutil.Process())


@contextmanager
def server(side: str, use: str, folder: Path, threads: int) -> Iterator[Target]:
    """The server as a child in its own process group, which ends with the block."""
    port, home = free_port(), folder.parent
    if side.startswith("bertsmith"):
        command = ["-c", "from flows.cli import main; main()", "serve", str(folder),
                   "--port", str(port), "--queue", str(CLIENTS),
                   "--precision", side.split()[-1]]  # fmt: skip
    else:
        command = ["-m", "mlflow", "models", "serve", "-m", f"models:/own-{use}@champion",
                   "-p", str(port), "-h", "127.0.0.1", "--env-manager", "local"]  # fmt: skip
    log = home / f"{use}-{side}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *command], env=environment(home, threads), stdout=output,
            stderr=output, start_new_session=True,
        )  # fmt: skip
    connections = [http.client.HTTPConnection("127.0.0.1", port) for _ in range(CLIENTS)]

    def ask(connection: http.client.HTTPConnection, text: str) -> float:
        start = time.perf_counter()
        body = json.dumps({"dataframe_records": [{"text": text}]})
        connection.request("POST", "/invocations", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise RuntimeError(f"{side} answered {response.status}: {answer[:500]!r}")
        return time.perf_counter() - start

    def many(texts: Sequence[str]) -> list[float]:
        def share(client: int) -> list[float]:
            return [ask(connections[client], text) for text in texts[client::CLIENTS]]

        with ThreadPoolExecutor(CLIENTS) as pool:
            return [seconds for each in pool.map(share, range(CLIENTS)) for seconds in each]

    def prepare() -> None:
        for connection in connections:  # the server closes them during the turns of others
            connection.close()
            connection.connect()

    try:
        deadline = time.monotonic() + 900
        while not answers(f"http://127.0.0.1:{port}/ping"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{side} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield Target(partial(ask, connections[0]), many, psutil.Process(process.pid), prepare)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def environment(home: Path, threads: int) -> dict[str, str]:
    paths = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return os.environ | {
        "OMP_NUM_THREADS": str(threads), "BERTSMITH_HOME": str(home), "PREFECT_API_URL": "",
        "MLFLOW_TRACKING_URI": f"sqlite:///{home / 'mlflow.db'}", "PATH": paths,
    }  # fmt: skip
