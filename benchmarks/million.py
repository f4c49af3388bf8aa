"""A million texts through the command line, compared with the loop alone.

    python benchmarks/million.py                                  # a million, on an idle machine
    python benchmarks/million.py --texts 50000
    python benchmarks/million.py --texts 20000 --folder all-MiniLM-L6-v2

The loop alone: tokenization and forward passes over the same texts in memory, in two processes with
one thread each, or in one with two, whichever is faster; nothing is written. The command:
`bertsmith predict --batch FILE --model NAME@champion --to FOLDER`, with all that it does: Prefect,
the registry, Ray, reading the file twice, writing Parquet, copying it. Vectors are computed from a
Parquet file with one row group, classes from a JSONL file. Then vectors again: the command's
process group gets SIGKILL when half of the shards exist, and the same command runs again.

Memory is the sum of the resident memory of the command and all its descendants, Ray's included,
read from /proc five times per second; shared pages count for each process. CPU seconds are theirs
too, for machines that run something else. The model is BERT-tiny with random weights, which take
the same time. Texts are sentences of the novels and of the IMDB reviews in ../shared/data; if they
are not enough, they repeat, and the result says so.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import report
from benchmarks.answers import DATA, ENVIRONMENT, bertsmith, prepare
from bert_core.hugging_face import import_model
from bert_core.inference import classify, embed
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.inference.tables import read_shards, write_table

QUESTIONS = {"vectors": embed, "classes": classify}
FORMATS = ("parquet", "jsonl", "csv")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(kw_only=True)
class Used:
    """Time and memory of processes."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    output: str = ""


def sentences() -> Iterator[str]:
    """Distinct sentences of 20 to 400 characters, cut at full stops."""
    seen: set[str] = set()
    novels = sorted((DATA / "corpus" / "english_novels").glob("*.txt"))
    for path in (*novels, DATA / "imdb" / "unlabelled.txt"):
        text = path.read_text(encoding="utf-8", errors="replace").replace("<br />", " ")
        for part in " ".join(text.split()).split(". "):
            if 20 <= len(part) <= 400 and part not in seen:
                seen.add(part)
                yield part + "."


def write_texts(folder: Path, count: int) -> int:
    """Write `count` texts, and a few, in each format; returns the number of distinct texts."""
    found = list(islice(sentences(), count))
    whole = list(islice(cycle(found), count))
    for name, texts in (("texts", whole), ("few", whole[:1000])):
        pq.write_table(pa.table({"text": texts}), folder / f"{name}.parquet", row_group_size=count)
        write_table(folder / f"{name}.jsonl", {"text": texts})
        write_table(folder / f"{name}.csv", {"text": texts})
    return len(found)


def monitored(command: list[str], home: Path, kill_after: int | None = None) -> Used:
    """Run `command` to its end, or until `kill_after` shards are in the store of `home`."""
    used, cpu_seconds_of = Used(), {}
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=home,
        env=os.environ | ENVIRONMENT | {"BERTSMITH_HOME": str(home)}, start_new_session=True,
    )  # fmt: skip
    output: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(target=output.extend, args=(process.stdout,), daemon=True)
    reader.start()
    while process.poll() is None:
        bytes_now = 0
        for pid, (seconds, resident) in descendants(process.pid).items():
            cpu_seconds_of[pid] = seconds
            bytes_now += resident
        used.peak_bytes = max(used.peak_bytes, bytes_now)
        if kill_after is not None and len(shards(home / "store")) >= kill_after:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            break
        time.sleep(0.2)
    used.seconds = time.perf_counter() - started
    used.cpu_seconds = sum(cpu_seconds_of.values())
    reader.join(10)  # Ray's processes may hold the pipe for a moment longer
    used.output = "".join(output)
    if kill_after is None and process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}:\n{used.output}")
    return used


def descendants(root: int) -> dict[int, tuple[float, int]]:
    """CPU seconds and resident bytes of `root` and all its descendants."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended
            continue
        ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21])
        found[int(path.parent.name)] = int(fields[1]), ticks / _TICKS, pages * _PAGE_BYTES
    wanted = {root}
    while True:
        more = {pid for pid, (parent, *_) in found.items() if parent in wanted} - wanted
        if not more:
            return {pid: found[pid][1:] for pid in wanted if pid in found}
        wanted |= more


def shards(folder: Path) -> dict[str, str]:
    """SHA-256 of every shard of predictions below `folder`, by name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("part-*.parquet"))
    }


def loop(question: str, folder: Path, file: Path, index: int, processes: int, threads: int) -> None:
    """Process every n-th block of 10,000 texts once a line is read; print the seconds it took."""
    torch.set_num_threads(threads)
    model, tokenizer = import_model(folder), WordPieceTokenizer.from_directory(folder)
    texts = pq.read_table(file).column("text").to_pylist()
    own = [text for n, text in enumerate(texts) if n // 10_000 % processes == index]
    own = own or texts[:1]
    QUESTIONS[question](model, tokenizer, own[:256])
    print("ready", flush=True)
    sys.stdin.readline()
    before, started = time.process_time(), time.perf_counter()
    QUESTIONS[question](model, tokenizer, own)
    print(json.dumps([time.perf_counter() - started, time.process_time() - before]), flush=True)


def loop_alone(question: str, folder: Path, file: Path) -> Used:
    """The faster of two processes with one thread each and one process with two."""
    best = Used(seconds=float("inf"))
    for processes, threads in ((2, 1), (1, 2)):
        sides = [
            subprocess.Popen(
                [sys.executable, __file__, "--loop", question, "--folder", str(folder),
                 "--file", str(file), "--split", f"{index},{processes},{threads}"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for index in range(processes)
        ]  # fmt: skip
        for side in sides:
            assert side.stdout is not None
            side.stdout.readline()
        for side in sides:
            assert side.stdin is not None
            print(file=side.stdin, flush=True)
        times = [json.loads(side.communicate()[0]) for side in sides]
        found = Used(
            seconds=max(seconds for seconds, _ in times),
            cpu_seconds=sum(seconds for _, seconds in times),
            output=f"{processes} x {threads}",
        )
        best = min(best, found, key=lambda used: used.seconds)
    return best


def reading(folder: Path) -> list[str]:
    """A row per format: seconds to read it shard by shard, and the memory for that."""
    lines = ["| file | MB | read in | memory beyond that of 1,000 texts |", "|---|---|---|---|"]
    for form in FORMATS:
        file = folder / f"texts.{form}"
        done = subprocess.run(
            [sys.executable, __file__, "--read", str(file)],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        seconds, grown = json.loads(done.stdout)
        size = file.stat().st_size / 1e6
        lines.append(f"| {form} | {size:.0f} | {seconds:.1f} s | {grown / 1e6:.0f} MB |")
    return lines


def read(file: Path) -> None:
    """Read a small file of the format, then `file`; print the seconds and the memory growth."""

    def peak() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

    list(read_shards(str(file.with_stem("few")), 5000))
    before, started = peak(), time.perf_counter()
    for _ in read_shards(str(file), 5000):
        pass
    print(json.dumps([time.perf_counter() - started, peak() - before]))


def measure(question: str, name: str, folder: Path, home: Path, texts: Path) -> list[str]:
    """Rows of the loop, the command and, for vectors, a command that is killed and repeated."""
    file = texts / ("texts.parquet" if question == "vectors" else "texts.jsonl")
    count = pq.read_metadata(texts / "texts.parquet").num_rows
    program = str(Path(sys.executable).with_name("bertsmith"))
    command = [program, "predict", "--batch", str(file), "--model", f"{name}@champion", "--to"]
    alone = loop_alone(question, folder, texts / "texts.parquet")
    whole = monitored([*command, str(home / question)], home)
    print(whole.output)
    lines = [
        row(f"{question}: the loop alone, {alone.output}", alone, count),
        row(f"{question}: the command", whole, count, alone),
    ]
    if question == "vectors":
        expected = shards(home / question)
        shutil.rmtree(home / "store" / "predictions")
        again = [*command, str(home / "again")]
        killed = monitored(again, home, kill_after=len(expected) // 2)
        lines.append(row("the same, killed when half of its shards existed", killed))
        resumed = monitored(again, home)
        print(resumed.output)
        if shards(home / "again") != expected:
            raise RuntimeError("the killed and repeated command wrote different bytes")
        lines.append(row("and run again: the same bytes", resumed))
    return lines


def row(side: str, used: Used, count: int = 0, alone: Used | None = None) -> str:
    cells = [
        f"{used.seconds:.1f}",
        f"{count / used.seconds:,.0f}" if count else "",
        f"{alone.seconds / used.seconds:.0%}" if alone else "",
        f"{used.cpu_seconds:.1f}",
        f"{alone.cpu_seconds / used.cpu_seconds:.0%}" if alone else "",
        f"{used.peak_bytes / 2**20:,.0f} MiB" if used.peak_bytes else "",
    ]
    return f"| {side} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--texts", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="an encoder; default: a random BERT-tiny")
    parser.add_argument("--loop", choices=QUESTIONS, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--split", help=argparse.SUPPRESS)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.loop:
        split = map(int, arguments.split.split(","))
        loop(arguments.loop, arguments.folder, arguments.file, *split)
        return
    if arguments.read:
        read(arguments.read)
        return
    with tempfile.TemporaryDirectory() as temporary:
        texts, home = Path(temporary) / "texts", Path(temporary) / "home"
        texts.mkdir()
        num_distinct = write_texts(texts, arguments.texts)
        if arguments.folder:
            home.mkdir()
            bertsmith(home, "import", str(arguments.folder), "--name", "own-embed")
        else:
            prepare(home, "tiny", ["embed", "predict"])
        lines = [
            f"{arguments.texts:,} texts, {num_distinct:,} of them distinct, "
            f"{arguments.folder.name if arguments.folder else 'BERT-tiny with random weights'}; "
            f"load average before {os.getloadavg()[0]:.1f}.",
            "",
            "| | seconds | texts/s | of the loop | CPU seconds | of the loop | memory |",
            "|---|---|---|---|---|---|---|",
        ]
        folder = arguments.folder or home / "folder-embed"
        lines += measure("vectors", "own-embed", folder, home, texts)
        if not arguments.folder:
            lines += measure("classes", "own-predict", home / "folder-predict", home, texts)
        lines += ["", *reading(texts)]
    report("million", "A million texts", lines)


if __name__ == "__main__":
    main()
