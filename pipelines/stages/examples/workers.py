"""What the workers of the examples stage do: encode, put examples together, cut even shards."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from bert_core.masking import MaskedTokens, mask_tokens
from bert_core.randomness import random_bits
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import Artifact, Draft
from pipelines.artifacts.attempts.workspace import Workspace
from pipelines.stages.examples.objectives import (
    Examples,
    SpecialIds,
    full_sentences,
    sentence_pairs,
    token_windows,
)
from pipelines.stages.examples.settings import ExampleSet, ExampleSettings
from pipelines.stages.examples.shards import (
    ExampleFormat,
    read_example_batch,
    write_examples,
    write_slices,
)
from pipelines.stages.examples.token_shards import read_token_shard, write_token_shard
from pipelines.stages.vocabulary.encoding import SentenceEncoder

_MASKED_AT_ONCE: Final = 8192  # examples


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingTask:
    """Encode any shard of the corpus."""

    corpus: Artifact
    vocabulary: Artifact
    work: Workspace

    def __call__(self, name: str) -> dict[str, Any]:
        """Encode the corpus shard `name`; returns what was counted."""
        done = self.work.finished(tokens_name(name))
        if done is not None:
            return done
        encoder = _encoder(self.vocabulary.local_folder().as_posix())
        with self.work.file(tokens_name(name)) as file:
            figures = write_token_shard(self.corpus.local(name), file.path, encoder)
            file.figures.update(figures)
        return figures


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOfExamples:
    """Which examples to make: a pass over a corpus shard, and where random segments come from."""

    split: ExampleSet
    pass_number: int
    index: int
    pool: tuple[str, ...]  # corpus shards; the first is the one to make examples of

    @property
    def name(self) -> str:
        """The working file of these examples."""
        return f"examples-{self.split}-{self.pass_number:03d}-{self.index:06d}.arrow"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleTask:
    """Make the examples of any corpus shard."""

    settings: ExampleSettings
    vocabulary: Artifact
    work: Workspace

    def __call__(self, shard: ShardOfExamples) -> dict[str, Any]:
        """Write the examples; returns what was counted."""
        done = self.work.finished(shard.name)
        if done is not None:
            return done
        encoder = _encoder(self.vocabulary.local_folder().as_posix())
        examples = self._examples(shard, encoder.tokenizer)
        masked = None
        if self.settings.has_static_masks(shard.split):
            masked = self._masked(shard, examples, encoder.tokenizer)
        figures = {
            "examples": examples.lengths.size,
            "tokens": int(examples.lengths.sum()),
            "masked_tokens": 0 if masked is None else masked.positions.size,
            **examples.figures,
        }
        layout = example_format(self.settings, self.vocabulary, shard.split)
        with self.work.file(shard.name) as file:
            write_examples(file.path, examples, masked, layout, mask_id=encoder.tokenizer.mask_id)
            file.figures.update(figures)
        return figures

    def _masked(
        self, shard: ShardOfExamples, examples: Examples, tokenizer: WordPieceTokenizer
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
                random_bits(self.settings.seed, purpose, shard.pass_number, shard.index, rows),
                config=self.settings.masking_config(),
                vocabulary=vocabulary,
            )
            done.append(replace(masked, positions=masked.positions + begin))
        return MaskedTokens(
            input_ids=np.concatenate([each.input_ids for each in done]),
            positions=np.concatenate([each.positions for each in done]),
            labels=np.concatenate([each.labels for each in done]),
        )

    def _examples(self, shard: ShardOfExamples, tokenizer: WordPieceTokenizer) -> Examples:
        settings = self.settings
        special = SpecialIds(cls=tokenizer.cls_id, sep=tokenizer.sep_id)
        with ExitStack() as stack:
            pool = [
                read_token_shard(stack.enter_context(self.work.local(tokens_name(name))))
                for name in shard.pool
            ]
            max_tokens = settings.max_tokens_of(shard.split)
            if settings.objective == "mlm":
                return full_sentences(pool[0], special, max_tokens=max_tokens)
            if settings.objective == "clm":
                return token_windows(pool[0], special, max_tokens=max_tokens)
            key = random_bits(
                settings.seed, f"pairs of {shard.split}", shard.pass_number, shard.index
            )
            return sentence_pairs(
                pool,
                special,
                max_tokens=max_tokens,
                short_fraction=settings.short_fraction,
                seed=int(key),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvenShard:
    """A shard as training reads it: successive rows of working files."""

    name: str
    split: ExampleSet
    rows: tuple[tuple[str, int, int], ...]  # working file, first row, row after the last


@dataclass(frozen=True, slots=True, kw_only=True)
class CuttingTask:
    """Put any even shard together."""

    settings: ExampleSettings
    vocabulary: Artifact
    work: Workspace
    draft: Draft

    def __call__(self, shard: EvenShard) -> dict[str, Any]:
        """Write the shard; returns its number of examples and tokens."""
        done = self.draft.finished(shard.name)
        if done is not None:
            return done
        with ExitStack() as stack:
            slices = [
                read_example_batch(stack.enter_context(self.work.local(name))).slice(
                    first, after - first
                )
                for name, first, after in shard.rows
            ]
            layout = example_format(self.settings, self.vocabulary, shard.split)
            with self.draft.file(shard.name) as file:
                write_slices(file.path, slices, layout)
                lengths = (each.column("input_ids").value_lengths() for each in slices)
                figures = {
                    "examples": sum(each.num_rows for each in slices),
                    "tokens": sum(int(np.sum(each.to_numpy())) for each in lengths),
                }
                file.figures.update(figures)
        return figures


def tokens_name(corpus_shard: str) -> str:
    """The working file with the tokens of a corpus shard."""
    return f"tokens-{corpus_shard}"


def example_format(
    settings: ExampleSettings, vocabulary: Artifact, split: ExampleSet
) -> ExampleFormat:
    """What the shards of `split` say of themselves."""
    return ExampleFormat(
        vocabulary=vocabulary.fingerprint,
        vocab_size=vocabulary.statistics["size"],
        objective=settings.objective,
        max_tokens=settings.max_tokens_of(split),
        seed=settings.seed,
        static_masks=settings.has_static_masks(split),
    )


@lru_cache(maxsize=1)
def _encoder(vocabulary_folder: str) -> SentenceEncoder:
    """One encoder a process: the words it learned serve the next shard too."""
    return SentenceEncoder(WordPieceTokenizer.from_directory(vocabulary_folder))
