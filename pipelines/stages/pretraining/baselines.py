"""What a pretrained encoder has to beat: figures reached without reading the context."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bert_core.batch import IGNORED_LABEL, LabelledBatch
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import Artifact
from pipelines.stages.examples.batches import ExampleReader, evaluation_batches
from pipelines.training.reduction import sum_over_ranks

_BATCH_TOKENS = 65_536


def pretraining_baselines(
    examples: Artifact,
    tokenizer: WordPieceTokenizer,
    max_examples: int,
    rank: int = 0,
    world_size: int = 1,
) -> dict[str, float]:
    """The unigram model's figures on the same held-out tokens that the encoder is judged by.

    It always answers the commonest token of the training examples; its loss is that of their
    token frequencies (add-one smoothed, special tokens left out). NSP: the commoner answer. Each
    rank reads its share of the shards; what they add up are whole numbers, so any number of ranks
    gives the same bits.
    """
    counts = token_counts(examples, tokenizer.vocab_size, rank, world_size)
    weights = sum_over_ranks(counts) + 1.0
    # These are never asked for.
    weights[[tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]] = 0.0
    commonest = int(weights.argmax())
    reader = ExampleReader(examples, "heldout")
    predicted, pairs = _heldout_labels(reader, tokenizer.vocab_size, max_examples, rank, world_size)
    num_predicted = predicted.sum()
    is_predicted = predicted > 0
    log_weights = np.log(weights[is_predicted]) @ predicted[is_predicted] / num_predicted
    objective = reader.settings.objective
    name = "clm" if objective == "clm" else "mlm"
    baselines = {
        f"baseline/{name}_accuracy": float(predicted[commonest] / num_predicted),
        f"baseline/{name}_loss": float(np.log(weights.sum()) - log_weights),
    }
    if pairs.sum():
        baselines["baseline/nsp_accuracy"] = float(pairs.max() / pairs.sum())
    return baselines


def token_counts(
    examples: Artifact, vocab_size: int, rank: int = 0, world_size: int = 1
) -> NDArray[np.int64]:
    """[V] how often each token stands in this rank's share of the training examples."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for name in examples.names("train-")[rank::world_size]:
        with pa.memory_map(str(examples.local(name))) as source:
            reader = pa.ipc.open_file(source)
            for index in range(reader.num_record_batches):
                ids = reader.get_batch(index).column("input_ids").flatten()
                counts += np.bincount(ids.to_numpy(), minlength=vocab_size)
    return counts


def _heldout_labels(
    reader: ExampleReader, vocab_size: int, max_examples: int, rank: int, world_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How often each token is to be predicted, [V], and each NSP label, [2], over all ranks."""
    predicted, pairs = np.zeros(vocab_size, np.int64), np.zeros(2, np.int64)
    for _, batch in evaluation_batches(
        reader, _BATCH_TOKENS, max_examples=max_examples, rank=rank, world_size=world_size
    ):
        if isinstance(batch, LabelledBatch):
            labels = batch.labels[batch.labels != IGNORED_LABEL].numpy()
        else:
            labels = batch.masked_labels.numpy()
            if batch.next_sentence_labels is not None:
                pairs += np.bincount(batch.next_sentence_labels.numpy(), minlength=2)
        predicted += np.bincount(labels, minlength=vocab_size)
    return sum_over_ranks(predicted), sum_over_ranks(pairs)
