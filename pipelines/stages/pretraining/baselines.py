"""What a pretrained encoder has to beat: figures reached without reading the context.

Masked tokens are also counted by kind. An encoder that always predicts "." and "the" is right
surprisingly often, but what matters are the content words:

- punctuation: tokens of nothing but characters that Unicode calls punctuation or symbols, and
  [CLS] and [SEP], between which a left-to-right model reads a text;
- frequent: of all other tokens that can begin a word, the most frequent that together are half of
  what such tokens are of the training examples (in English, about the function words); and
  [UNK], which hides what stood there;
- content: everything else, and so every token that continues a word.
"""

import math
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bert_core.batch import IGNORED_LABEL, LabelledBatch, PretrainingBatch
from bert_core.vocabulary import CONTINUATION, WordPieceTokenizer
from pipelines.stages.corpus.shards import read_batches
from pipelines.stages.examples.batches import ExampleReader, evaluation_batches
from pipelines.store import Artifact
from pipelines.train.ranks import sum_over_ranks

_BATCH_TOKENS = 65_536
_LARGEST_LOSS: Final = 700.0  # its exponential is a number still, which JSON and MLflow can hold
_COUNTED_TOKENS: Final = 400_000_000  # of the training examples; more would change no figure


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unigrams:
    """How common each token is in the training examples, and of what kind it is."""

    weights: NDArray[np.float64]  # [V] counts, add-one smoothed; 0 for what is never asked for
    kinds: dict[str, NDArray[np.bool_]]  # [V] each, see `token_kinds`

    @classmethod
    def of(
        cls, examples: Artifact, tokenizer: WordPieceTokenizer, rank: int = 0, world_size: int = 1
    ) -> Self:
        """Count the training examples; each rank reads its share of the shards, all call it.

        Of very many examples, shards all over them are counted. What the ranks add up are whole
        numbers, so any number of ranks gives the same bits.
        """
        counts = sum_over_ranks(token_counts(examples, tokenizer.vocab_size, rank, world_size))
        weights = counts + 1.0
        weights[[tokenizer.pad_id, tokenizer.mask_id]] = 0.0
        if examples.statistics["objective"] != "clm":  # which predicts where texts begin and end
            weights[[tokenizer.cls_id, tokenizer.sep_id]] = 0.0
        return cls(weights=weights, kinds=token_kinds(tokenizer, counts))


def pretraining_baselines(
    unigrams: Unigrams,
    reader: ExampleReader,
    max_examples: int,
    rank: int = 0,
    world_size: int = 1,
) -> dict[str, float]:
    """The unigram model's figures on the same held-out tokens that the encoder is evaluated on.

    It always answers the most frequent token, of a kind of tokens the most frequent of that kind;
    its loss is that of the token frequencies. NSP: the more frequent answer. Beside these, the
    share of the tokens to predict that are of each kind. All ranks call it and get the same bits.
    """
    predicted, pairs = _heldout_labels(reader, rank, world_size, max_examples)
    weights, num_predicted = unigrams.weights, predicted.sum()
    is_predicted = predicted > 0
    log_weights = np.log(weights[is_predicted]) @ predicted[is_predicted] / num_predicted
    loss = float(np.log(weights.sum()) - log_weights)
    name = "clm" if reader.settings.objective == "clm" else "mlm"
    baselines = {
        f"baseline/{name}_accuracy": float(predicted[weights.argmax()] / num_predicted),
        f"baseline/{name}_loss": loss,
        f"baseline/{name}_perplexity": perplexity(loss),
    }
    for kind, is_kind in unigrams.kinds.items():
        of_kind = predicted[is_kind].sum()
        baselines[f"baseline/{name}_share/{kind}"] = float(of_kind / num_predicted)
        if of_kind:
            most_frequent = np.where(is_kind, weights, 0.0).argmax()
            baselines[f"baseline/{name}_accuracy/{kind}"] = float(
                predicted[most_frequent] / of_kind
            )
    if pairs.sum():
        baselines["baseline/nsp_accuracy"] = float(pairs.max() / pairs.sum())
    return baselines


def perplexity(loss: float) -> float:
    """Among how many equally likely tokens the model chooses: e to the loss, at most e**700."""
    return math.exp(min(loss, _LARGEST_LOSS))


def token_counts(
    examples: Artifact,
    vocab_size: int,
    rank: int = 0,
    world_size: int = 1,
    *,
    most_tokens: int = _COUNTED_TOKENS,
) -> NDArray[np.int64]:
    """[V] how often each token occurs in this rank's share of the counted training shards.

    All shards are counted where they hold at most about `most_tokens`, else every so-many-th.
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    for ids in counted_tokens(examples, most_tokens, rank, world_size):
        counts += np.bincount(ids.flatten().to_numpy(), minlength=vocab_size)
    return counts


def counted_tokens(
    examples: Artifact, most_tokens: int, rank: int = 0, world_size: int = 1
) -> Iterator[pa.ListArray]:
    """Token ids of this rank's share of the training shards that hold about `most_tokens`.

    They are all of them, or every so-many-th.
    """
    for name in _counted_shards(examples, most_tokens)[rank::world_size]:
        for batch in read_batches(examples.local(name)):
            yield batch.column("input_ids")


def _counted_shards(examples: Artifact, most_tokens: int) -> list[str]:
    names = examples.names("train-")
    files = examples.manifest.files
    num_tokens = sum(files[name].figures["tokens"] for name in names)
    return names[:: max(1, num_tokens // most_tokens)]


def _heldout_labels(
    reader: ExampleReader, rank: int, world_size: int, max_examples: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How often each token is to be predicted, [V], and each NSP label, [2], over all ranks."""
    predicted, pairs = np.zeros(reader.vocab_size, np.int64), np.zeros(2, np.int64)
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
        predicted += np.bincount(labels, minlength=reader.vocab_size)
    return sum_over_ranks(predicted), sum_over_ranks(pairs)


CONTENT, FREQUENT, PUNCTUATION = KINDS = ("content", "frequent", "punctuation")

_FREQUENT_SHARE: Final = 0.5  # in running words


def token_kinds(
    tokenizer: WordPieceTokenizer, counts: NDArray[np.int64]
) -> dict[str, NDArray[np.bool_]]:
    """Which tokens are of each of `KINDS`, [V] each; what is never asked for is of none.

    `counts` [V] says how often each token occurs in the training examples. Of equally frequent
    tokens the one with the lower id comes first.
    """
    size = tokenizer.vocab_size
    is_asked = np.ones(size, dtype=np.bool_)
    is_asked[[tokenizer.pad_id, tokenizer.mask_id]] = False
    continues = np.array([token.startswith(CONTINUATION) for token in tokenizer.tokens])
    is_punctuation = np.array([_is_punctuation(token) for token in tokenizer.tokens])
    is_punctuation &= is_asked & ~continues
    is_punctuation[[tokenizer.cls_id, tokenizer.sep_id]] = True
    begins = is_asked & ~continues & ~is_punctuation
    begins[tokenizer.unk_id] = False
    ids = np.flatnonzero(begins)
    ranked = ids[np.argsort(-counts[ids], kind="stable")]
    before = np.cumsum(counts[ranked]) - counts[ranked]
    is_frequent = np.zeros(size, dtype=np.bool_)
    is_frequent[ranked[before < _FREQUENT_SHARE * counts[ids].sum()]] = True
    is_frequent[tokenizer.unk_id] = True
    return {
        CONTENT: is_asked & ~is_frequent & ~is_punctuation,
        FREQUENT: is_frequent,
        PUNCTUATION: is_punctuation,
    }


def _is_punctuation(token: str) -> bool:
    return all(unicodedata.category(character)[0] in "PS" for character in token)
