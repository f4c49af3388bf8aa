"""What the workers of the examples stage do: encode, put examples together, cut even shards."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bert_core.masking import MaskedTokens, mask_tokens
from bert_core.randomness import random_bits
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import Artifact, Draft, Workspace
from pipelines.stages.examples.objectives import (
    Examples,
    SpecialIds,
    full_sentences,
    sentence_pairs,
    token_windows,
)
from pipelines.stages.examples.settings import ExampleSet, ExampleSettings
from pipelines.stages.examples.shards import (
    example_schema,
    read_example_batch,
    write_examples,
    write_slices,
)
from pipelines.stages.examples.token_shards import read_token_shard, write_token_shard
from pipelines.stages.vocabulary.encoding import SentenceEncoder

_MASKED_AT_ONCE: Final = 8192  # examples


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOfExamples:
    """Which examples to make: a pass over a corpus shard, and where random segments come from."""

    split: ExampleSet
    pass_number: int
    index: int
    pool: tuple[str, ...]  # corpus shards; the first is the one to make examples of

    @property
    def name(self) -> str:
        return f"examples-{self.split}-{self.pass_number:03d}-{self.index:06d}.arrow"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvenShard:
    """A shard as training reads it: successive rows of working files."""

    name: str
    split: ExampleSet
    rows: tuple[tuple[str, int, int], ...]  # working file, first row, row after the last


def encode(corpus: Artifact, vocabulary: Artifact, work: Workspace, name: str) -> dict[str, Any]:
    """Encode the corpus shard `name`; returns what was counted."""

    def write(path: Path) -> dict[str, Any]:
        return write_token_shard(corpus.local(name), path, _encoder_of(vocabulary))

    return work.once(tokens_name(name), write)


def make_examples(
    settings: ExampleSettings, vocabulary: Artifact, work: Workspace, shard: ShardOfExamples
) -> dict[str, Any]:
    """Write the examples of a corpus shard; returns what was counted."""

    def write(path: Path) -> dict[str, Any]:
        tokenizer = _encoder_of(vocabulary).tokenizer
        examples = _examples(settings, work, shard, tokenizer)
        masked = None
        if settings.has_static_masks(shard.split):
            masked = _masked(settings, shard, examples, tokenizer)
        schema = _schema(settings, vocabulary, shard.split)
        write_examples(path, examples, masked, schema, mask_id=tokenizer.mask_id)
        return {
            "examples": examples.lengths.size,
            "tokens": int(examples.lengths.sum()),
            "masked_tokens": 0 if masked is None else masked.positions.size,
            **examples.figures,
        }

    return work.once(shard.name, write)


def cut_shard(
    settings: ExampleSettings,
    vocabulary: Artifact,
    work: Workspace,
    draft: Draft,
    shard: EvenShard,
) -> dict[str, Any]:
    """Put an even shard together; returns its number of examples and tokens."""

    def write(path: Path) -> dict[str, Any]:
        with ExitStack() as stack:
            files = [stack.enter_context(work.local(name)) for name, _, _ in shard.rows]
            slices = [
                read_example_batch(file).slice(first, after - first)
                for file, (_, first, after) in zip(files, shard.rows, strict=True)
            ]
            write_slices(path, slices, _schema(settings, vocabulary, shard.split))
            lengths = (each.column("input_ids").value_lengths() for each in slices)
            return {
                "examples": sum(each.num_rows for each in slices),
                "tokens": sum(int(np.sum(each.to_numpy())) for each in lengths),
            }

    return draft.once(shard.name, write)


def tokens_name(corpus_shard: str) -> str:
    return f"tokens-{corpus_shard}"


def _examples(
    settings: ExampleSettings,
    work: Workspace,
    shard: ShardOfExamples,
    tokenizer: WordPieceTokenizer,
) -> Examples:
    special = SpecialIds(cls=tokenizer.cls_id, sep=tokenizer.sep_id)
    max_tokens = settings.max_tokens_of(shard.split)
    with ExitStack() as stack:
        files = [stack.enter_context(work.local(tokens_name(name))) for name in shard.pool]
        pool = [read_token_shard(file) for file in files]
        if settings.objective == "mlm":
            return full_sentences(pool[0], special, max_tokens=max_tokens)
        if settings.objective == "clm":
            return token_windows(pool[0], special, max_tokens=max_tokens)
        purpose = f"pairs of {shard.split}"
        return sentence_pairs(
            pool,
            special,
            max_tokens=max_tokens,
            short_fraction=settings.short_fraction,
            seed=int(random_bits(settings.seed, purpose, shard.pass_number, shard.index)),
        )


def _masked(
    settings: ExampleSettings,
    shard: ShardOfExamples,
    examples: Examples,
    tokenizer: WordPieceTokenizer,
) -> MaskedTokens:
    """Masks that stay, drawn from (seed, split, pass, shard, index)."""
    purpose = f"static masks of {shard.split}"
    vocabulary = tokenizer.maskable()
    edges = np.concatenate([[0], np.cumsum(examples.lengths)])
    done: list[MaskedTokens] = []
    for first in range(0, examples.lengths.size, _MASKED_AT_ONCE):
        rows = np.arange(first, min(first + _MASKED_AT_ONCE, examples.lengths.size))
        begin, end = edges[rows[0]], edges[rows[-1] + 1]
        masked = mask_tokens(
            examples.input_ids[begin:end],
            examples.lengths[rows],
            random_bits(settings.seed, purpose, shard.pass_number, shard.index, rows),
            config=settings.masking_config(),
            vocabulary=vocabulary,
        )
        done.append(replace(masked, positions=masked.positions + begin))
    return MaskedTokens(
        input_ids=np.concatenate([each.input_ids for each in done]),
        positions=np.concatenate([each.positions for each in done]),
        labels=np.concatenate([each.labels for each in done]),
    )


def _schema(settings: ExampleSettings, vocabulary: Artifact, split: ExampleSet) -> pa.Schema:
    return example_schema(settings, split, vocabulary.fingerprint, vocabulary.statistics["size"])


def _encoder_of(vocabulary: Artifact) -> SentenceEncoder:
    return _encoder(vocabulary.local_folder().as_posix())


@lru_cache(maxsize=1)
def _encoder(vocabulary_folder: str) -> SentenceEncoder:
    """One encoder a process: the words it learned serve the next shard too."""
    return SentenceEncoder(WordPieceTokenizer.from_directory(vocabulary_folder))
