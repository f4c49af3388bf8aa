"""From text to example shards: our stages compared with a plain loop of the published algorithm.

    python benchmarks/data.py [--folder FOLDER] [--files 25] [--vocabulary vocab.txt] [--rounds 5]

Both sides read the same text files and write masked sentence pairs of at most 128 tokens with the
same vocabulary, and they alternate. The stages run on two Ray workers; starting Ray and importing
the libraries in its workers is timed separately. The plain loop follows google-research/bert's
`create_pretraining_data.py` in one process, with the fast tokenizer and our sentence splitter. A
third row only encodes the sentences: the minimum for any program that tokenizes every word.
"""

import argparse
import importlib
import os
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from tokenizers import BertWordPieceTokenizer

from bert_core.vocabulary import WordPieceTokenizer
from pipelines.cluster import connect, disconnect, map_tasks
from pipelines.settings import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.stages.corpus.cleaning import split_sentences
from pipelines.stages.corpus.settings import CorpusSettings, TextFiles
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.examples.stage import ExampleSettings, build_examples
from pipelines.stages.vocabulary.stage import import_vocabulary
from pipelines.store import Artifact, ArtifactStore

DATA = Path(__file__).parents[2] / "shared" / "data"
MAX_TOKENS = 128
NUM_WORKERS = 2
PLAIN_ROUNDS = 2  # a run of the plain loop takes several times as long


def main() -> None:
    arguments = parse_arguments()
    files = sorted(arguments.folder.glob("*_*.txt"))[: arguments.files]
    num_bytes = sum(path.stat().st_size for path in files)
    print(f"{len(files)} files, {num_bytes / 1e6:.1f} MB, {MAX_TOKENS} tokens, static masks")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(arguments.vocabulary, folder / "vocab.txt")
        tokenizer = WordPieceTokenizer.from_directory(folder, lowercase=True)
        started = time.perf_counter()
        connect()
        ray_seconds = time.perf_counter() - started
        os.environ["TOKENIZERS_PARALLELISM"] = "true"  # in this process; the workers have it off
        started = time.perf_counter()
        map_tasks(import_libraries, [0] * NUM_WORKERS * 2, num_workers=NUM_WORKERS)
        import_seconds = time.perf_counter() - started
        timings: dict[str, list[float]] = {}
        for number in range(arguments.rounds):
            store = folder / f"store-{number}"
            corpus_seconds, examples_seconds, examples = run_stages(files, folder, store)
            timings.setdefault("stages: corpus", []).append(corpus_seconds)
            timings.setdefault("stages: examples", []).append(examples_seconds)
            timings.setdefault("stages: both", []).append(corpus_seconds + examples_seconds)
            shutil.rmtree(store)
            sentences = [split_sentences(path.read_text(encoding="utf-8")) for path in files]
            timings.setdefault("encoding alone", []).append(timed(encode, folder, sentences))
            if number < PLAIN_ROUNDS:
                output = folder / "plain.npz"
                seconds, count = run_plain_loop(files, tokenizer, output)
                timings.setdefault("plain loop", []).append(seconds)
                plain_bytes = output.stat().st_size / count
        disconnect()
    print(f"Ray started in {ray_seconds:.1f} s, imports in its workers {import_seconds:.1f} s\n")
    print(f"{'':20} {'median s':>9} {'best s':>8} {'x plain loop':>12}")
    reference = statistics.median(timings["plain loop"])
    for row, seconds in timings.items():
        median = statistics.median(seconds)
        print(f"{row:20} {median:9.2f} {min(seconds):8.2f} {reference / median:12.1f}")
    train = examples.statistics["train"]
    sizes = [examples.manifest.files[name].bytes for name in examples.names("train-")]
    print(
        f"\nstages: {train['examples']} training examples of {train['mean_tokens']} tokens, "
        f"{sum(sizes) / train['tokens']:.2f} bytes per token on disk\n"
        f"plain loop: {count} examples, {plain_bytes:.0f} bytes each on disk"
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=DATA / "corpus" / "english_novels")
    parser.add_argument("--files", type=int, default=25)
    parser.add_argument(
        "--vocabulary", type=Path, default=DATA / "vocab" / "google_uncased_en_vocab.txt"
    )
    parser.add_argument("--rounds", type=int, default=5, help="runs of the stages")
    return parser.parse_args()


def import_libraries(_: int) -> None:
    """Import what the first task needs; slow enough that both workers take part."""
    for module in ("corpus.stage", "corpus.reading", "examples.stage"):
        importlib.import_module(f"pipelines.stages.{module}")
    time.sleep(0.2)


def run_stages(files: list[Path], vocabulary: Path, store: Path) -> tuple[float, float, Artifact]:
    context = StageContext(
        store=ArtifactStore(store), runtime=RuntimeSettings(num_workers=NUM_WORKERS)
    )
    given = import_vocabulary(vocabulary, context, lowercase=True)
    source = TextFiles(paths=tuple(map(str, files)), hard_wrapped=True)
    started = time.perf_counter()
    corpus = build_corpus(CorpusSettings(sources=(source,)), context)
    corpus_seconds = time.perf_counter() - started
    settings = ExampleSettings(max_tokens=MAX_TOKENS, masking="static")
    started = time.perf_counter()
    examples = build_examples(settings, corpus, given, context)
    return corpus_seconds, time.perf_counter() - started, examples


def encode(vocabulary: Path, documents: list[list[str]]) -> None:
    """The library's fastest call, on all cores; the ids are not read."""
    tokenizer = BertWordPieceTokenizer(str(vocabulary / "vocab.txt"), lowercase=True)
    for sentences in documents:
        tokenizer._tokenizer.encode_batch_fast(sentences, add_special_tokens=False)


def timed(function, *arguments) -> float:
    started = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - started


def run_plain_loop(
    files: list[Path], tokenizer: WordPieceTokenizer, output: Path
) -> tuple[float, int]:
    """Run the published algorithm token by token; returns seconds and number of examples."""
    started = time.perf_counter()
    rng = random.Random(0)
    documents = []
    for path in files:
        sentences = split_sentences(path.read_text(encoding="utf-8"))
        documents.append([ids for sentence in sentences if (ids := tokenizer.encode(sentence))])
    rng.shuffle(documents)
    rows = [row for index in range(len(documents)) for row in instances(documents, index, rng)]
    rng.shuffle(rows)
    padded = [masked_row(*row, tokenizer, rng) for row in rows]
    columns = zip(*padded, strict=True)
    np.savez(output, *(np.array(column, dtype=np.int32) for column in columns))
    return time.perf_counter() - started, len(padded)


def instances(documents: list[list[list[int]]], index: int, rng: random.Random):
    """Pairs of segments of one document (`create_instances_from_document`)."""
    document, limit = documents[index], MAX_TOKENS - 3
    target = limit if rng.random() > 0.1 else rng.randint(2, limit)
    chunk: list[list[int]] = []
    length = position = 0
    while position < len(document):
        chunk.append(document[position])
        length += len(document[position])
        if position == len(document) - 1 or length >= target:
            a_end = 1 if len(chunk) < 2 else rng.randint(1, len(chunk) - 1)
            a = [token for sentence in chunk[:a_end] for token in sentence]
            b: list[int] = []
            is_random = len(chunk) == 1 or rng.random() < 0.5
            if is_random:
                other = index
                while other == index:
                    other = rng.randrange(len(documents))
                for sentence in documents[other][rng.randrange(len(documents[other])) :]:
                    b.extend(sentence)
                    if len(b) >= target - len(a):
                        break
                position -= len(chunk) - a_end
            else:
                b = [token for sentence in chunk[a_end:] for token in sentence]
            while len(a) + len(b) > limit:
                longer = a if len(a) > len(b) else b
                longer.pop(0 if rng.random() < 0.5 else -1)
            yield a, b, is_random
            chunk, length = [], 0
        position += 1


def masked_row(
    a: list[int], b: list[int], is_random: bool, tokenizer: WordPieceTokenizer, rng: random.Random
):
    """One padded example with its masks (`create_masked_lm_predictions`)."""
    tokens = [tokenizer.cls_id, *a, tokenizer.sep_id, *b, tokenizer.sep_id]
    segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
    special = {tokenizer.cls_id, tokenizer.sep_id}
    candidates = [position for position, token in enumerate(tokens) if token not in special]
    rng.shuffle(candidates)
    chosen = sorted(candidates[: max(1, round(len(tokens) * 0.15))])
    labels = [tokens[position] for position in chosen]
    for position in chosen:
        draw = rng.random()
        if draw < 0.8:
            tokens[position] = tokenizer.mask_id
        elif draw < 0.9:
            tokens[position] = rng.randrange(tokenizer.vocab_size)
    padding, unused = MAX_TOKENS - len(tokens), 20 - len(chosen)
    return (
        tokens + [0] * padding,
        [1] * len(tokens) + [0] * padding,
        segments + [0] * padding,
        chosen + [0] * unused,
        labels + [0] * unused,
        [1] * len(chosen) + [0] * unused,
        [int(is_random)],
    )


if __name__ == "__main__":
    main()
