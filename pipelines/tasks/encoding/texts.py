"""Items that are a text or a pair of texts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_core.batch import RaggedBatch
from bert_core.inference.texts import BATCH_TOKENS, EncodedTexts, Text, encode_texts
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.tasks import BadItemError, Form, Item

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
    """The label of a record; raises BadItemError where nobody has labelled it.

    An empty one, null, NaN, and the words nan and <NA> that stand for it in tables say so.
    """
    label: str = record["label"]
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
