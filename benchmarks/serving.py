"""Serving: one query at a time and sixteen clients at once, compared with alternatives.

    python benchmarks/serving.py --model all-MiniLM-L6-v2
    python benchmarks/serving.py --model all-MiniLM-L6-v2 --threads 1 --turns 3 --uses vectors

All sides have the weights of one published encoder: as it is for vectors, with a random head of two
classes for classes, which takes the same time. Texts of 10 to 400 tokens, short ones more often,
come from the novels in ../shared/data. Sides take turns in their own processes, after a warm-up.

In process: one text after the other, then all of them in one call, as each library does that best
(`transformers` and ONNX Runtime sorted by length, in batches of 32 padded to their longest text).
Servers: one client, then sixteen, with one text per request over persistent connections; clients
run on the same cores. ONNX files are written by `bert_core.onnx`, int8 by ONNX Runtime. Memory is
the resident memory of a side's processes at the end of a turn, for a server without its clients.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import ROOT, Side, alternate, report, serve
from benchmarks.serving_sides import (
    EAGER,
    SERVERS,
    SIDES,
    Target,
    environment,
    server,
    target_in_process,
)
from bert_core.hugging_face import import_model
from bert_core.vocabulary import WordPieceTokenizer

NOVELS = ROOT.parent / "shared" / "data" / "corpus" / "english_novels"


def texts_of_lengths(tokenizer: WordPieceTokenizer, count: int) -> list[str]:
    """Texts of 10 to 400 tokens, as many between 10 and 20 as between 200 and 400."""
    random = np.random.default_rng(0)
    novel = sorted(NOVELS.glob("*.txt"))[0].read_text(encoding="utf-8", errors="replace")
    text = " ".join(novel.split())[: count * 2400]
    _, offsets = tokenizer.encode_with_offsets(text)
    found, start = [], 0
    for length in np.exp(random.uniform(np.log(10), np.log(400), count)).astype(int) - 2:
        found.append(text[offsets[start][0] : offsets[start + length - 1][1]])
        start += int(length)
    return found


def take_turns(target: Target, texts: Sequence[str], file: Path) -> None:
    """Serve turns: every text by itself, then all of them; each appends a line to `file`."""

    def turn() -> None:
        one = []
        target.prepare()
        for text in texts:
            start = time.perf_counter()
            target.one(text)
            one.append(time.perf_counter() - start)
        target.prepare()
        start = time.perf_counter()
        each = target.many(texts)
        rate = len(texts) / (time.perf_counter() - start)
        processes = [target.process, *target.process.children(recursive=True)]
        held = sum(process.memory_info().rss for process in processes)
        with file.open("a") as lines:
            lines.write(json.dumps({"one": one, "each": each, "rate": rate, "held": held}) + "\n")

    serve(turn, {})


def prepare(home: Path, model: Path, uses: Sequence[str], threads: int) -> None:
    """Make a folder with weights and ONNX files, and a registered version, for each use."""
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
    """A row per side, from its turns without the first, the warm-up."""
    lines = [
        "| side | one: median | 95% | 99% | over eager | sixteen: median | 95% | 99% | texts/s "
        "| over eager | MiB |", "|" + "---|" * 11,
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
            with server(side, use, folder, threads) as target:
                take_turns(target, texts, folder / f"{side}.jsonl")
        else:
            target = target_in_process(side, use, folder, threads)
            take_turns(target, texts, folder / f"{side}.jsonl")
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
        f"turns, {arguments.threads} threads per side. Over eager: how many times as fast as "
        f"{EAGER}, by the median of one and by texts/s. Load average at the end "
        f"{os.getloadavg()[1]:.1f}."
    )
    report("serving", "Serving: one query, and sixteen clients", [remark, "", *lines[:-1]])


if __name__ == "__main__":
    main()
