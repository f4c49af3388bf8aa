"""Items as the encoder reads them: texts, pairs of texts, and questions about contexts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from bert_core.inference.texts import BATCH_TOKENS, EncodedTexts, Text, encode_texts
from bert_core.inference.windows import (
    TextWindows,
    Window,
    longest_question,
    question_windows,
    text_windows,
)
from bert_core.model.catalogue import Model, MultiLabelClassifier, SequenceClassifier
from bert_core.ragged import RaggedBatch
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.config.errors import UserError
from pipelines.tasks import BadItemError, Item, Items, Reading
from pipelines.training.ranks import sum_over_ranks


def check_texts(record: Mapping[str, Any], *names: str) -> None:
    """Raise BadItemError where one of these fields holds something that is no text."""
    for name in names:
        if not isinstance(record.get(name), str | None):
            raise BadItemError(f"have a text as its {name}", f"{record[name]!r:.60}")


def text_fields(record: Mapping[str, Any]) -> Item:
    """The fields of an item that hold its text and, or None, the second one.

    Raises BadItemError where they hold no text, or the second one of a pair is empty.
    """
    check_texts(record, "text", "second_text")
    second = record.get("second_text")
    if second == "":
        raise BadItemError("have both texts of its pair", "an empty second one")
    return {"text": record["text"], "second_text": second}


def label_of(record: Mapping[str, Any]) -> str:
    """The label of a record; raises BadItemError where it has none, or several.

    Empty, null and NaN are no label.
    """
    label = record["label"]
    if not isinstance(label, str):
        raise BadItemError("have one class as its label", repr(label)[:60])
    if not label:
        raise BadItemError("have a label", "none")
    return label


def check_classes(classes: Sequence[str], num_items: int, items: str, advice: str) -> None:
    """Raise UserError where there are too many classes for so few items."""
    if len(classes) > num_items // 2:
        raise UserError(
            f"found {len(classes)} labels on {num_items} {items}, too few of each to train on; "
            f"check {advice}"
        )


def check_known(heldout: set[str], known: Iterable[str]) -> None:
    """Raise UserError for classes that no training item has."""
    unknown = sorted(heldout - set(known))
    if unknown:
        raise UserError(
            f"the labels {unknown[:5]} are only among the held-out texts; add training texts "
            "with them, or set another split seed"
        )


def class_names(model: Model) -> tuple[str, ...]:
    """What the model's classes are called, or their numbers; none where it has no classes."""
    named: tuple[str, ...] | None = getattr(model, "labels", None)
    return named or tuple(str(index) for index in range(getattr(model, "num_labels", 0)))


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


def outputs(model: Model, texts: EncodedTexts, reading: Reading, *shape: int) -> np.ndarray:
    """[N, *shape] of all ranks' texts."""
    found = np.zeros((len(texts.sequences), *shape))
    for members, tokens in share(texts, reading):
        found[members] = model(tokens).float().numpy()
    return sum_over_ranks(found)


def mean_probabilities(
    model: SequenceClassifier | MultiLabelClassifier,
    windows: TextWindows,
    probable: Callable[[Tensor], Tensor],
    reading: Reading,
) -> np.ndarray:
    """[N, C] of all ranks' windows, as `bert_core.inference` averages them."""
    sums = np.zeros((len(windows.num_windows), model.num_labels))
    for members, tokens in share(windows.encoded, reading):
        np.add.at(sums, windows.texts[members], probable(model(tokens).float()).double().numpy())
    found: np.ndarray = sum_over_ranks(sums) / windows.num_windows[:, None]
    return found


def share(texts: EncodedTexts, reading: Reading) -> Iterator[tuple[np.ndarray, RaggedBatch]]:
    """This rank's batches, and which texts each holds: those of one process, shared out.

    They are the batches of `bert_core.inference`, whatever the number of ranks, so that who asks a
    published model gets the same bits.
    """
    for number, (members, tokens) in enumerate(texts.batches(BATCH_TOKENS)):
        if number % reading.world_size == reading.rank:
            yield members, tokens


class ReadQuestions(NamedTuple):
    """The windows of all questions, in the order of the questions."""

    encoded: EncodedTexts
    windows: list[Window]
    questions: list[int]  # of each window, ascending
    offsets: list[list[tuple[int, int]]]  # of each question: the characters of its context's tokens


def read_questions(items: Items, tokenizer: WordPieceTokenizer, reading: Reading) -> ReadQuestions:
    """[CLS] question [SEP] window [SEP] for every window of every question's context.

    A question of more than 64 tokens loses its end, as published, and is counted.
    """
    longest = longest_question(reading.max_tokens)
    contexts: dict[str, tuple[list[int], list[tuple[int, int]]]] = {}
    asked = tokenizer.encode_batch([item["question"] for item in items.rows])
    sequences, starts, windows, questions, offsets = [], [], [], [], []
    for number, (item, question) in enumerate(zip(items.rows, asked, strict=True)):
        if item["context"] not in contexts:
            contexts[item["context"]] = tokenizer.encode_with_offsets(item["context"])
        ids, spans = contexts[item["context"]]
        encoded, found = question_windows(
            tokenizer, question[:longest], ids, reading.max_tokens, reading.stride
        )
        sequences += encoded.sequences
        starts += encoded.segment_b_start
        windows += found
        questions += [number] * len(found)
        offsets.append(spans)
    num_cut = sum(len(question) > longest for question in asked)
    encoded = EncodedTexts(sequences=sequences, segment_b_start=starts, num_truncated=num_cut)
    return ReadQuestions(encoded, windows, questions, offsets)


def span_in(item: Item, offsets: list[tuple[int, int]], window: Window) -> tuple[int, int] | None:
    """First and last token of the answer in the window's sequence; (0, 0) where it has none of it.

    None where the window holds a part of the answer. The first reference is the one to learn.
    """
    if not item["answers"]:
        return 0, 0
    begin = item["starts"][0]
    end = begin + len(item["answers"][0])
    of_answer = [
        token for token, (first, last) in enumerate(offsets) if first < end and last > begin
    ]
    if not of_answer:
        return None  # the tokenizer leaves nothing of it
    first, last = of_answer[0] - window.first_token, of_answer[-1] - window.first_token
    if last < 0 or first >= window.num_tokens:
        return 0, 0
    if first < 0 or last >= window.num_tokens:
        return None
    return window.num_before + first, window.num_before + last
