"""Items that are a text or a pair of texts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from bert_core.batch import RaggedBatch
from bert_core.inference.texts import BATCH_TOKENS, EncodedTexts, Text, encode_texts
from bert_core.inference.windows import TextWindows, text_windows
from bert_core.model.catalogue import MultiLabelClassifier, SequenceClassifier
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.tasks import BadItemError, Form, Item, Reading
from pipelines.training.reduction import sum_over_ranks

# They stand in tables for a row that nobody has labelled.
_NO_LABEL = ("", "nan", "<na>")


class OfTexts:
    """What families of texts and pairs of texts have in common."""

    form: Form = "texts"

    def group(self, item: Item) -> str:
        """Equal texts stand together; of a pair the first."""
        text: str = item["text"]
        return text


def text_fields(record: Mapping[str, Any]) -> Item:
    """The fields of an item that hold its text and, or None, the second one.

    Raises BadItemError where the second one of a pair is empty.
    """
    second = record.get("second_text")
    if second == "":
        raise BadItemError("have both texts of its pair", "an empty second one")
    return {"text": record["text"], "second_text": second}


def label_of(record: Mapping[str, Any]) -> str:
    """The label of a record; raises BadItemError where nobody has labelled it, or several.

    An empty one, null, NaN, and the words nan and <NA> that stand for it in tables say so.
    """
    label = record["label"]
    if not isinstance(label, str):
        raise BadItemError("have one class as its label", repr(label)[:60])
    if label.lower() in _NO_LABEL:
        raise BadItemError("have a label", repr(label or "none"))
    return label


def text_of(item: Item) -> Text:
    """The text or pair of an item, as the tokenizer takes it."""
    second = item["second_text"]
    return item["text"] if second is None else (item["text"], second)


def encoded(items: Sequence[Item], tokenizer: WordPieceTokenizer, max_tokens: int) -> EncodedTexts:
    """The texts of `items`, cut to `max_tokens`."""
    return encode_texts(tokenizer, [text_of(item) for item in items], max_tokens)


def windows_of(
    items: Sequence[Item], tokenizer: WordPieceTokenizer, reading: Reading
) -> TextWindows:
    """The texts of `items` in windows where these are read, else cut."""
    return text_windows(
        tokenizer,
        [text_of(item) for item in items],
        reading.max_tokens,
        reading.stride,
        reads_windows=reading.text_windows,
    )


def mean_probabilities(
    model: SequenceClassifier | MultiLabelClassifier,
    windows: TextWindows,
    probable: Callable[[Tensor], Tensor],
    rank: int,
    world_size: int,
) -> np.ndarray:
    """[N, C] of all ranks' windows, as `bert_core.inference` averages them."""
    sums = np.zeros((len(windows.num_windows), model.num_labels))
    for members, tokens in share(windows.encoded, rank, world_size):
        np.add.at(sums, windows.texts[members], probable(model(tokens).float()).double().numpy())
    found: np.ndarray = sum_over_ranks(sums) / windows.num_windows[:, None]
    return found


def share(
    texts: EncodedTexts, rank: int, world_size: int
) -> Iterator[tuple[np.ndarray, RaggedBatch]]:
    """This rank's batches, and which texts each holds: those of one process, shared out.

    They are the batches of `bert_core.inference`, whatever the number of ranks, so that who asks a
    published model gets the same bits.
    """
    for number, (members, tokens) in enumerate(texts.batches(BATCH_TOKENS)):
        if number % world_size == rank:
            yield members, tokens
