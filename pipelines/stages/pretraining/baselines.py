"""What a pretrained encoder has to beat: figures reached without reading the context."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bert_core.batch import IGNORED_LABEL, LabelledBatch
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import Artifact
from pipelines.stages.examples.batches import ExampleReader, evaluation_batches

_BATCH_TOKENS = 65_536


def pretraining_baselines(
    examples: Artifact, tokenizer: WordPieceTokenizer, max_examples: int
) -> dict[str, float]:
    """The unigram model's figures on the same held-out tokens that the encoder is judged by.

    It always answers the commonest token of the training examples; its loss is that of their
    token frequencies (add-one smoothed, special tokens left out). NSP: the commoner answer.
    """
    weights = token_counts(examples, tokenizer.vocab_size) + 1.0
    # These are never asked for.
    weights[[tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]] = 0.0
    commonest = int(weights.argmax())
    predicted, pairs = _heldout_labels(examples, max_examples)
    objective = "clm" if pairs is None else "mlm"
    baselines = {
        f"baseline/{objective}_accuracy": float((predicted == commonest).mean()),
        f"baseline/{objective}_loss": float(
            np.log(weights.sum()) - np.log(weights[predicted]).mean()
        ),
    }
    if pairs is not None and pairs.size:
        share = float(pairs.mean())
        baselines["baseline/nsp_accuracy"] = max(share, 1 - share)
    return baselines


def token_counts(examples: Artifact, vocab_size: int) -> NDArray[np.int64]:
    """[V] how often each token stands in the training examples."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for name in examples.names("train-"):
        with pa.memory_map(str(examples.local(name))) as source:
            reader = pa.ipc.open_file(source)
            for index in range(reader.num_record_batches):
                ids = reader.get_batch(index).column("input_ids").flatten()
                counts += np.bincount(ids.to_numpy(), minlength=vocab_size)
    return counts


def _heldout_labels(
    examples: Artifact, max_examples: int
) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """The tokens to predict in the held-out examples, and their NSP labels.

    The second is None for the examples of a language model, and empty where there are no pairs.
    """
    predicted, pairs = [], [np.empty(0, np.int64)]
    reader = ExampleReader(examples, "heldout")
    for batch in evaluation_batches(reader, _BATCH_TOKENS, max_examples=max_examples):
        if isinstance(batch, LabelledBatch):
            predicted.append(batch.labels[batch.labels != IGNORED_LABEL].numpy())
            continue
        predicted.append(batch.masked_labels.numpy())
        if batch.next_sentence_labels is not None:
            pairs.append(batch.next_sentence_labels.numpy())
    is_language_model = reader.settings.objective == "clm"
    return np.concatenate(predicted), None if is_language_model else np.concatenate(pairs)
