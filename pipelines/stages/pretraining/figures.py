"""Held-out figures of a pretrained encoder, each beside what is reached without the context."""

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from bert_core.batch import IGNORED_LABEL, Batch, LabelledBatch, PretrainingBatch
from bert_core.model.catalogue import LanguageModel, PretrainingModel
from bert_core.model.trainable import Sums
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.stages.examples.batches import (
    ExampleReader,
    evaluation_batches,
    num_evaluation_batches,
)
from pipelines.stages.pretraining.baselines import (
    Unigrams,
    perplexity,
    pretraining_baselines,
)
from pipelines.store import Artifact
from pipelines.train.ranks import means_over_ranks

_BATCH_TOKENS = 8_192


def pretraining_figures(
    model: PretrainingModel | LanguageModel,
    reader: ExampleReader,
    max_examples: int,
    rank: int = 0,
    world_size: int = 1,
    kinds: Mapping[str, NDArray[np.bool_]] | None = None,
) -> dict[str, float]:
    """Held-out losses and accuracies of masked tokens and, where there are pairs, of NSP.

    With `kinds`, [V] each, the accuracy on each kind of tokens as well, unless none of it is asked
    for. The first `max_examples` examples count, without dropout, in float32 unless a block around
    this says otherwise; any number of ranks gives the same bits, as long as each computes with as
    many threads.
    """
    device = next(model.parameters()).device
    batches = evaluation_batches(
        reader, _BATCH_TOKENS, max_examples=max_examples, rank=rank, world_size=world_size
    )
    num_batches = num_evaluation_batches(reader, _BATCH_TOKENS, max_examples=max_examples)
    names = [f"{loss}_{figure}" for loss in model.loss_names for figure in ("loss", "accuracy")]
    options = {}
    by_kind = []
    if kinds is not None:
        options["kinds"] = {kind: torch.from_numpy(of).to(device) for kind, of in kinds.items()}
        by_kind = [f"{model.loss_names[0]}_accuracy/{kind}" for kind in kinds]
    sums_of: Callable[..., Sums] = model.evaluation_sums  # examples of its own objective
    means = means_over_ranks(
        [*names, *by_kind],
        num_batches,
        ((number, sums_of(batch.to(device), **options)) for number, batch in batches),
        may_be_empty=by_kind,
    )
    # A language model's only labels are the next tokens.
    figures = {f"eval/{name.replace('label_', 'clm_')}": value for name, value in means.items()}
    name = "clm" if "eval/clm_loss" in figures else "mlm"
    return {**figures, f"eval/{name}_perplexity": perplexity(figures[f"eval/{name}_loss"])}


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
    def unigrams(self) -> Unigrams:
        """How common each token is in the training examples."""
        return Unigrams.of(self._examples, self._tokenizer, *self._ranks)

    def figures(
        self, model: PretrainingModel | LanguageModel, max_examples: int
    ) -> dict[str, float]:
        """`eval/` figures on the first `max_examples` examples, and the `baseline/` of each."""
        if max_examples not in self._baselines:
            self._baselines[max_examples] = pretraining_baselines(
                self.unigrams, self._reader, max_examples, *self._ranks
            )
        kinds = self.unigrams.kinds
        figures = pretraining_figures(model, self._reader, max_examples, *self._ranks, kinds)
        return {**figures, **self._baselines[max_examples]}


@torch.inference_mode()
def sequence_losses(
    model: PretrainingModel | LanguageModel, reader: ExampleReader, max_examples: int
) -> NDArray[np.float64]:
    """[N, 2] of each held-out example the summed loss of its predicted tokens, and their number.

    These are the examples, masks and order of `pretraining_figures`, whose loss is the quotient of
    the two sums.
    """
    found = []
    batches = evaluation_batches(reader, _BATCH_TOKENS, max_examples=max_examples)
    for _, batch in batches:
        ends = np.cumsum(batch.tokens.lengths)
        rows = np.zeros((len(ends), 2))
        positions, losses = _losses(model, batch)
        sequence = np.searchsorted(ends, positions.numpy(), side="right")
        np.add.at(rows, sequence, np.stack([losses.double().numpy(), np.ones(len(losses))], 1))
        found.append(rows)
    return np.concatenate(found) if found else np.zeros((0, 2))


def _losses(model: PretrainingModel | LanguageModel, batch: Batch) -> tuple[Tensor, Tensor]:
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
