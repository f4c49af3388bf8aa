"""Reading examples: tokens per second on one core, including masking.

    python benchmarks/loader.py [--folder FOLDER] [--seconds 2] [--rounds 5]

Builds examples of a folder of text files (length 128) and reads random micro-batches of 64 through
`pipelines.stages.examples.batches`, with token and whole-word masking, compared with the usual way:
the same examples in the same order through `transformers`' DataCollatorForLanguageModeling with
padding. All alternate in one process on one thread.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import BertTokenizer, DataCollatorForLanguageModeling

from bert_core.randomness import Permutation
from pipelines.artifacts import Artifact, ArtifactStore
from pipelines.stage import StageContext
from pipelines.stages.corpus.settings import CorpusSettings, PlainText
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.examples.batches import ExampleReader, micro_batches
from pipelines.stages.examples.stage import ExampleSettings, build_examples
from pipelines.stages.vocabulary.stage import VocabularySettings, build_vocabulary

DATA = Path(__file__).parents[2] / "shared" / "data"
EXAMPLES = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=DATA / "corpus" / "english_novels")
    parser.add_argument("--files", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    files = sorted(arguments.folder.glob("*_*.txt"))[: arguments.files]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        context = StageContext(store=ArtifactStore(folder), num_workers=2)
        source = PlainText(paths=tuple(map(str, files)))
        corpus = build_corpus(CorpusSettings(sources=(source,)), context)
        vocabulary = build_vocabulary(VocabularySettings(), corpus, context)
        tokens, words = (
            build_examples(ExampleSettings(whole_words=choice), corpus, vocabulary, context)
            for choice in (False, True)
        )
        sides: dict[str, Callable[[int], int]] = {
            "tokens": ours(tokens),
            "whole words": ours(words),
            "transformers' collator, tokens": theirs(tokens, vocabulary),
        }
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(arguments.rounds):
            for name, read in sides.items():
                rates[name].append(measure(read, arguments.seconds))
    print(f"{'':32} {'M tokens/s':>10}   median of {arguments.rounds}, one thread")
    for name, found in rates.items():
        print(f"{name:32} {statistics.median(found) / 1e6:10.2f}")


def measure(read: Callable[[int], int], seconds: float) -> float:
    """Tokens per second of CPU time: what one core does, whatever else runs."""
    started = time.process_time()
    tokens = step = 0
    while time.process_time() - started < seconds:
        tokens += read(step)
        step += 1
    return tokens / (time.process_time() - started)


def ours(examples: Artifact) -> Callable[[int], int]:
    reader = ExampleReader(examples, "train")

    def read(step: int) -> int:
        batches = micro_batches(
            reader, seed=0, step=step, global_batch_size=EXAMPLES, micro_batch_size=EXAMPLES
        )
        return sum(batch.tokens.num_tokens for _, batch in batches)

    return read


def theirs(examples: Artifact, vocabulary: Artifact) -> Callable[[int], int]:
    reader = ExampleReader(examples, "train")
    order = Permutation(len(reader), 0, "benchmark")
    tokenizer = BertTokenizer.from_pretrained(vocabulary.local_folder())
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)

    def read(step: int) -> int:
        first = step * EXAMPLES % (len(reader) - EXAMPLES)
        rows = reader.rows(0, order[np.arange(first, first + EXAMPLES)])
        ids = np.split(rows.input_ids, np.cumsum(rows.lengths)[:-1])
        features = [{"input_ids": row.astype(np.int64)} for row in ids]
        collator(features)
        return int(rows.lengths.sum())

    return read


if __name__ == "__main__":
    main()
