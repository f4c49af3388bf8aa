"""Serving: one query at a time and sixteen clients at once, beside what people use otherwise.

    python benchmarks/serving.py --model all-MiniLM-L6-v2
    python benchmarks/serving.py --model all-MiniLM-L6-v2 --threads 1 --turns 3 --uses vectors

All sides have the weights of one published encoder: for vectors as it is, for classes with two
random rows on top, which cost the same time. Texts of 10 to 400 tokens, short ones more often, come
from the novels in ../shared/data. Sides take turns in processes of their own, warmed up.

In process: one text after the other, then all of them in one call, as each library does that best
(`transformers` and ONNX Runtime sorted by length, in batches of 32 that are padded to their longest
text). Servers: one client, then sixteen, a text a request over connections that stay open; clients
run on the same cores. ONNX files are written by `bert_core.onnx`, int8 by ONNX Runtime. Memory is
what a side's processes hold at the end of a turn, of a server without its clients.
"""

import argparse
import http.client
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
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

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import ROOT, Side, alternate, report, serve
from bert_core.backends.precision import Precision
from bert_core.hugging_face import import_model
from bert_core.inference import classify, embed
from bert_core.vocabulary import WordPieceTokenizer
from flows.services.health import answers, free_port

NOVELS = ROOT.parent / "shared" / "data" / "corpus" / "english_novels"
CLIENTS = 16
BATCH = 32  # of theirs
READ_TOKENS = {"vectors": 256, "classes": 512}  # what the published model reads for a vector
EAGER = "transformers eager, float32"
SERVERS = ("bertsmith serve, float32", "mlflow models serve, float32")
ONNX = ("ONNX Runtime, float32", "ONNX Runtime, int8")
SIDES = (
    "ours, float32", "ours, bf16", EAGER, "transformers eager, bf16",
    "transformers compiled, float32", "sentence-transformers, float32", *ONNX, *SERVERS,
)  # fmt: skip
Answer = Callable[[Sequence[str]], Any]


class Asked(NamedTuple):
    """How a side is asked one text, and all of them; which process holds its memory."""

    one: Callable[[str], Any]
    many: Callable[[Sequence[str]], list[float]]  # seconds of each request
    process: psutil.Process
    begin: Callable[[], None] = lambda: None  # before one, and before many


def texts_of_lengths(tokenizer: WordPieceTokenizer, count: int) -> list[str]:
    """Texts of 10 to 400 tokens, as many between 10 and 20 as between 200 and 400."""
    random = np.random.default_rng(0)
    novel = sorted(NOVELS.glob("*.txt"))[0].read_text(encoding="utf-8", errors="replace")
    text = " ".join(novel.split())[: count * 2400]
    _, offsets = tokenizer.encode_with_offsets(text)
    found, begin = [], 0
    for length in np.exp(random.uniform(np.log(10), np.log(400), count)).astype(int) - 2:
        found.append(text[offsets[begin][0] : offsets[begin + length - 1][1]])
        begin += int(length)
    return found


def our_answer(side: str, use: str, folder: Path) -> Answer:
    model, tokenizer = import_model(folder), WordPieceTokenizer.from_directory(folder)
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
        name = "sentence_embedding" if use == "vectors" else "logits"
        return lambda texts: session.run([name], dict(encode(list(texts), return_tensors="np")))
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
    """Sorted by length, so that little is padded."""
    ordered = sorted(texts, key=len, reverse=True)
    for first in range(0, len(ordered), BATCH):
        answer(ordered[first : first + BATCH])


def asked_in_process(side: str, use: str, folder: Path, threads: int) -> Asked:
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

    return Asked(lambda text: answer([text]), all_at_once, psutil.Process())


@contextmanager
def server(side: str, use: str, folder: Path, threads: int) -> Iterator[Asked]:
    """The server as a child in a process group of its own, which ends with the block."""
    port, home = free_port(), folder.parent
    if side.startswith("bertsmith"):
        command = ["-c", "from flows.cli import main; main()", "serve", str(folder),
                   "--port", str(port), "--queue", str(CLIENTS)]  # fmt: skip
    else:
        command = ["-m", "mlflow", "models", "serve", "-m", f"models:/own-{use}@champion",
                   "-p", str(port), "-h", "127.0.0.1", "--env-manager", "local"]  # fmt: skip
    log = home / f"{use}-{side.split()[0]}.log"
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
        said = response.read()
        if response.status != 200:
            raise RuntimeError(f"{side} said {response.status}: {said[:500]!r}")
        return time.perf_counter() - start

    def many(texts: Sequence[str]) -> list[float]:
        def share(client: int) -> list[float]:
            return [ask(connections[client], text) for text in texts[client::CLIENTS]]

        with ThreadPoolExecutor(CLIENTS) as pool:
            return [seconds for each in pool.map(share, range(CLIENTS)) for seconds in each]

    def begin() -> None:
        for connection in connections:  # which the server closes while others have their turn
            connection.close()
            connection.connect()

    try:
        deadline = time.monotonic() + 900
        while not answers(f"http://127.0.0.1:{port}/ping"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{side} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield Asked(partial(ask, connections[0]), many, psutil.Process(process.pid), begin)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def environment(home: Path, threads: int) -> dict[str, str]:
    paths = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return os.environ | {
        "OMP_NUM_THREADS": str(threads), "BERTSMITH_HOME": str(home), "PREFECT_API_URL": "",
        "MLFLOW_TRACKING_URI": f"sqlite:///{home / 'mlflow.db'}", "PATH": paths,
    }  # fmt: skip


def take_turns(asked: Asked, texts: Sequence[str], file: Path) -> None:
    """Every text by itself, then all of them; what was measured is a line of a file."""

    def turn() -> None:
        one = []
        asked.begin()
        for text in texts:
            start = time.perf_counter()
            asked.one(text)
            one.append(time.perf_counter() - start)
        asked.begin()
        start = time.perf_counter()
        each = asked.many(texts)
        rate = len(texts) / (time.perf_counter() - start)
        family = [asked.process, *asked.process.children(recursive=True)]
        held = sum(process.memory_info().rss for process in family)
        with file.open("a") as lines:
            lines.write(json.dumps({"one": one, "each": each, "rate": rate, "held": held}) + "\n")

    serve(turn, {})


def prepare(home: Path, model: Path, uses: Sequence[str], threads: int) -> None:
    """For each use a folder with the weights, its ONNX files, and a version in the registry."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from transformers import AutoModelForSequenceClassification

    from bert_core import onnx

    for use in uses:
        folder = home / use
        shutil.copytree(model, folder)
        if use == "classes":
            torch.manual_seed(0)
            shutil.rmtree(folder / "1_Pooling")
            (folder / "modules.json").unlink()
            head = AutoModelForSequenceClassification.from_pretrained(model, num_labels=2)
            head.save_pretrained(folder)
        exact = folder / "float32.onnx"
        onnx.export_onnx(import_model(folder).eval(), exact)
        quantize_dynamic(exact, folder / "int8.onnx", weight_type=QuantType.QInt8)
        command = ["-c", "from flows.cli import main; main()", "import", str(folder)]
        subprocess.run(
            [sys.executable, *command, "--name", f"own-{use}"],
            check=True, env=environment(home, threads), stdout=subprocess.DEVNULL,
        )  # fmt: skip


def table(folder: Path, sides: Sequence[str]) -> list[str]:
    """A row a side, from its turns but for the first one, which warmed it up."""
    lines = [
        "| side | one: median | 95% | 99% | over eager | sixteen: median | 95% | 99% | texts a "
        "second | over eager | MiB |", "|" + "---|" * 11,
    ]  # fmt: skip
    measured = {}
    for side in sides:
        rows = [json.loads(line) for line in (folder / f"{side}.jsonl").open()][1:]
        one, each = (
            np.array([seconds for row in rows for seconds in row[name]]) * 1e3
            for name in ("one", "each")
        )
        rate = statistics.median(row["rate"] for row in rows)
        measured[side] = one, each, rate, max(row["held"] for row in rows) >> 20
    eager, _, eager_rate, _ = measured[EAGER]
    for side, (one, each, rate, held) in measured.items():
        cells = [f"{value:.1f} ms" for value in np.percentile(one, (50, 95, 99))]
        cells.append(f"{np.median(eager) / np.median(one):.2f}x")
        cells += (
            [f"{value:.0f} ms" for value in np.percentile(each, (50, 95, 99))]
            if each.size else ["–"] * 3
        )  # fmt: skip
        cells += [f"{rate:.0f}", f"{rate / eager_rate:.2f}x", f"{held:,}"]
        lines.append(f"| {side} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of a published encoder")
    parser.add_argument("--uses", default="vectors,classes", type=lambda names: names.split(","))
    parser.add_argument("--sides", default=";".join(SIDES), type=lambda names: names.split(";"))
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        side, (use,), threads = arguments.side, arguments.uses, arguments.threads
        folder = arguments.home / use
        texts = texts_of_lengths(WordPieceTokenizer.from_directory(folder), arguments.texts)
        if side in SERVERS:
            with server(side, use, folder, threads) as asked:
                take_turns(asked, texts, folder / f"{side}.jsonl")
        else:
            asked = asked_in_process(side, use, folder, threads)
            take_turns(asked, texts, folder / f"{side}.jsonl")
        return
    lines = []
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        prepare(home, arguments.model, arguments.uses, arguments.threads)
        for use in arguments.uses:
            sides = [side for side in arguments.sides if use == "vectors" or "sentence" not in side]
            shared = [
                "--model", str(arguments.model), "--uses", use, "--home", str(home),
                "--texts", str(arguments.texts), "--threads", str(arguments.threads),
            ]  # fmt: skip
            alternate(
                {side: Side([__file__, *shared, "--side", side], num_warmups=1) for side in sides},
                arguments.turns,
            )
            lines += [f"## {use.capitalize()}", "", *table(home / use, sides), ""]
    remark = (
        f"{arguments.model.name}, {arguments.texts} texts of 10 to 400 tokens, {arguments.turns} "
        f"turns, {arguments.threads} threads a side. Over eager: how many times as fast as "
        f"{EAGER}, by the median of one and by texts a second. Load average at the end "
        f"{os.getloadavg()[1]:.1f}."
    )
    report("serving", "Serving: one query, and sixteen clients", [remark, "", *lines[:-1]])


if __name__ == "__main__":
    main()
