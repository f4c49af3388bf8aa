"""Held-out figures of a pretrained encoder, each beside what is reached without the context."""

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from bert_core.batch import IGNORED_LABEL, Batch, LabelledBatch, PretrainingBatch
from bert_core.model.catalogue import LanguageModel, PretrainingModel
from bert_core.model.trainable import Sums
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.stages.corpus.shards import read_batches
from pipelines.stages.examples.batches import (
    ExampleReader,
    evaluation_batches,
    num_evaluation_batches,
)
from pipelines.store import Artifact
from pipelines.train.ranks import means_over_ranks, sum_over_ranks

_BATCH_TOKENS: Final = 8_192
_LARGEST_LOSS: Final = 700.0  # its exponential is a number still, which JSON and MLflow can hold
_COUNTED_TOKENS: Final = 400_000_000  # of the training examples; more would change no figure

TokenModel = PretrainingModel | LanguageModel


def pretraining_figures(
    model: TokenModel, reader: ExampleReader, max_examples: int, rank: int = 0, world_size: int = 1
) -> dict[str, float]:
    """Held-out losses and accuracies of masked tokens and, where there are pairs, of NSP.

    The first `max_examples` examples count, without dropout, in float32 unless a block around this
    says otherwise; any number of ranks gives the same bits, as long as each computes with as many
    threads.
    """
    device = next(model.parameters()).device
    batches = evaluation_batches(
        reader, _BATCH_TOKENS, max_examples=max_examples, rank=rank, world_size=world_size
    )
    sums_of: Callable[..., Sums] = model.evaluation_sums  # examples of its own objective
    means = means_over_ranks(
        model.figure_names,
        num_evaluation_batches(reader, _BATCH_TOKENS, max_examples=max_examples),
        ((number, sums_of(batch.to(device))) for number, batch in batches),
    )
    # A language model's only labels are the next tokens.
    figures = {f"eval/{name.replace('label_', 'clm_')}": value for name, value in means.items()}
    name = _objective(reader)
    return {**figures, f"eval/{name}_perplexity": _perplexity(figures[f"eval/{name}_loss"])}


class HeldoutExamples:
    """Held-out examples to evaluate a model on; every rank makes one and asks the same of it.

    What the training examples are counted for is counted once, at the first question.
    """

    def __init__(
        self, examples: Artifact, tokenizer: WordPieceTokenizer, rank: int, world_size: int
    ) -> None:
        self._examples = examples
        self._tokenizer = tokenizer
        self._ranks = rank, world_size
        self._reader = ExampleReader(examples, "heldout")
        self._baselines: dict[int, dict[str, float]] = {}

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """[V] how often each token occurs in the training examples; 0 for what is never asked for.

        Of very many examples, shards all over them are counted.
        """
        own = np.zeros(self._tokenizer.vocab_size, np.int64)
        for ids in counted_tokens(self._examples, _COUNTED_TOKENS, *self._ranks):
            own += np.bincount(ids.flatten().to_numpy(), minlength=len(own))
        counts = sum_over_ranks(own)
        counts[_never_asked(self._reader, self._tokenizer)] = 0
        return counts

    def figures(self, model: TokenModel, max_examples: int) -> dict[str, float]:
        """`eval/` figures on the first `max_examples` examples, and the `baseline/` of each."""
        if max_examples not in self._baselines:
            self._baselines[max_examples] = self._unigram_figures(max_examples)
        figures = pretraining_figures(model, self._reader, max_examples, *self._ranks)
        return {**figures, **self._baselines[max_examples]}

    def _unigram_figures(self, max_examples: int) -> dict[str, float]:
        """The unigram model's figures on the same held-out tokens, the same bits on all ranks.

        It always answers the most frequent token; its loss is that of the token frequencies. NSP:
        the more frequent answer.
        """
        labels, pairs = _heldout_labels(self._reader, *self._ranks, max_examples)
        weights = self.counts + 1.0
        weights[_never_asked(self._reader, self._tokenizer)] = 0.0
        is_label = labels > 0
        log_weights = np.log(weights[is_label]) @ labels[is_label] / labels.sum()
        loss = float(np.log(weights.sum()) - log_weights)
        name = _objective(self._reader)
        baselines = {
            f"baseline/{name}_accuracy": float(labels[weights.argmax()] / labels.sum()),
            f"baseline/{name}_loss": loss,
            f"baseline/{name}_perplexity": _perplexity(loss),
        }
        if pairs.sum():
            baselines["baseline/nsp_accuracy"] = float(pairs.max() / pairs.sum())
        return baselines


def _objective(reader: ExampleReader) -> str:
    return "clm" if reader.settings.objective == "clm" else "mlm"


def _perplexity(loss: float) -> float:
    """Among how many equally likely tokens the model chooses: e to the loss, at most e**700."""
    return math.exp(min(loss, _LARGEST_LOSS))


def _never_asked(reader: ExampleReader, tokenizer: WordPieceTokenizer) -> list[int]:
    never = [tokenizer.pad_id, tokenizer.mask_id]
    if _objective(reader) == "mlm":  # a language model predicts where texts begin and end
        never += [tokenizer.cls_id, tokenizer.sep_id]
    return never


def _heldout_labels(
    reader: ExampleReader, rank: int, world_size: int, max_examples: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How often each token is to be predicted, [V], and each NSP label, [2], over all ranks."""
    tokens, pairs = np.zeros(reader.vocab_size, np.int64), np.zeros(2, np.int64)
    for _, batch in evaluation_batches(
        reader, _BATCH_TOKENS, max_examples=max_examples, rank=rank, world_size=world_size
    ):
        if isinstance(batch, LabelledBatch):
            labels = batch.labels[batch.labels != IGNORED_LABEL].numpy()
        else:
            assert isinstance(batch, PretrainingBatch), type(batch)
            labels = batch.masked_labels.numpy()
            if batch.next_sentence_labels is not None:
                pairs += np.bincount(batch.next_sentence_labels.numpy(), minlength=2)
        tokens += np.bincount(labels, minlength=reader.vocab_size)
    return sum_over_ranks(tokens), sum_over_ranks(pairs)


def counted_tokens(
    examples: Artifact, most_tokens: int, rank: int = 0, world_size: int = 1
) -> Iterator[pa.ListArray]:
    """Token ids of this rank's share of the training shards that hold about `most_tokens`.

    They are all of them, or every so-many-th.
    """
    names, files = examples.names("train-"), examples.manifest.files
    num_tokens = sum(files[name].figures["tokens"] for name in names)
    for name in names[:: max(1, num_tokens // most_tokens)][rank::world_size]:
        for batch in read_batches(examples.local(name)):
            yield batch.column("input_ids")


@torch.inference_mode()
def sequence_losses(
    model: TokenModel, reader: ExampleReader, max_examples: int
) -> NDArray[np.float64]:
    """[N, 2] of each held-out example the summed loss of its predicted tokens, and their number.

    These are the examples, masks and order of `pretraining_figures`, whose loss is the quotient of
    the two sums.
    """
    tables = [np.zeros((0, 2))]
    for _, batch in evaluation_batches(reader, _BATCH_TOKENS, max_examples=max_examples):
        ends = np.cumsum(batch.tokens.lengths)
        rows = np.zeros((len(ends), 2))
        positions, losses = _losses(model, batch)
        sequence = np.searchsorted(ends, positions.numpy(), side="right")
        np.add.at(rows, sequence, np.stack([losses.double().numpy(), np.ones(len(losses))], 1))
        tables.append(rows)
    return np.concatenate(tables)


def _losses(model: TokenModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Positions among the batch's tokens, and the loss of each."""
    if isinstance(model, PretrainingModel):
        assert isinstance(batch, PretrainingBatch)
        logits, _ = model(batch.tokens, batch.masked_positions)
        losses = cross_entropy(logits.float(), batch.masked_labels, reduction="none")
        return batch.masked_positions, losses
    assert isinstance(batch, LabelledBatch)
    positions = torch.nonzero(batch.labels != IGNORED_LABEL).flatten()
    logits = model(batch.tokens, positions)
    return positions, cross_entropy(logits.float(), batch.labels[positions], reduction="none")
