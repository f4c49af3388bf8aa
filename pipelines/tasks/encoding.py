"""Items as the encoder reads them, as answers ask for them, and as training takes its batches."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from bert_core.batch import Batch, LabelledBatch, RaggedBatch
from bert_core.inference.texts import BATCH_TOKENS, EncodedTexts, Text, encode_texts
from bert_core.inference.windows import (
    TextWindows,
    Window,
    longest_question,
    question_windows,
    text_windows,
)
from bert_core.model.catalogue import Model, MultiLabelClassifier, SequenceClassifier
from bert_core.randomness import Permutation
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.tasks import BadItemError, Item, Items, Reading, TaskExamples
from pipelines.train.ranks import sum_over_ranks


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """N examples, each of `per_example` sequences and one label.

    `labels` holds what `LabelledBatch` takes: an array of N rows, or N arrays, one for each token
    of a sequence, which a batch joins.
    """

    encoded: EncodedTexts
    labels: np.ndarray | Sequence[np.ndarray]
    per_example: int = 1

    @property
    def num_truncated(self) -> int:
        """Sequences whose end was left out."""
        return self.encoded.num_truncated

    def __len__(self) -> int:
        return len(self.encoded.sequences) // self.per_example

    def batch(self, indices: np.ndarray) -> LabelledBatch:
        """The examples at `indices`, in that order."""
        each = np.arange(self.per_example)
        places = (np.asarray(indices)[:, None] * self.per_example + each).reshape(-1)
        tokens = RaggedBatch.from_sequences(
            [self.encoded.sequences[place] for place in places],
            [self.encoded.segment_b_start[place] for place in places],
        )
        return LabelledBatch.from_arrays(tokens, self._labels_of(indices))

    def _labels_of(self, indices: np.ndarray) -> ArrayLike:
        if isinstance(self.labels, np.ndarray):
            return self.labels[indices]
        return np.concatenate([self.labels[index] for index in indices])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """N pairs with a label each, some with a third text that is known not to fit.

    A batch holds the first texts, then the second ones, then the third ones that there are.
    """

    encoded: EncodedTexts  # N first texts, N second ones, then the others
    labels: np.ndarray  # [N], or [N, 2] numbers of both texts
    others: Sequence[int | None]  # of each pair: where its third text is

    @property
    def num_truncated(self) -> int:
        """Texts whose end was left out."""
        return self.encoded.num_truncated

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: np.ndarray) -> LabelledBatch:
        """The examples at `indices`, in that order."""
        pairs = np.asarray(indices).tolist()
        places = [*pairs, *(len(self) + pair for pair in pairs)]
        places += [place for pair in pairs if (place := self.others[pair]) is not None]
        tokens = RaggedBatch.from_sequences([self.encoded.sequences[place] for place in places])
        return LabelledBatch.from_arrays(tokens, self.labels[indices])


def encoded_pairs(
    first: Sequence[str],
    second: Sequence[str],
    third: Sequence[str | None],
    labels: np.ndarray,
    tokenizer: WordPieceTokenizer,
    max_tokens: int,
) -> Pairs:
    """The texts of N pairs, each cut to `max_tokens`; None where a pair has no third text."""
    places: list[int | None] = []
    more: list[str] = []
    for text in third:
        places.append(None if text is None else 2 * len(first) + len(more))
        more += [] if text is None else [text]
    encoded = encode_texts(tokenizer, [*first, *second, *more], max_tokens)
    return Pairs(encoded=encoded, labels=labels, others=places)


def batches(
    examples: TaskExamples, size: int, rank: int, world_size: int
) -> Iterator[tuple[int, Batch]]:
    """This rank's share of the batches of all examples in order, `size` at a time, numbered."""
    for number in range(rank, -(-len(examples) // size), world_size):
        last = min((number + 1) * size, len(examples))
        yield number, examples.batch(np.arange(number * size, last))


def shuffled(num_examples: int, seed: int, step: int, global_batch_size: int) -> np.ndarray:
    """Indices of the examples that optimizer step `step` learns from.

    Every example comes once an epoch, in an order of its own for each epoch; a step may take the
    end of one and the beginning of the next.
    """
    stream = np.arange(step * global_batch_size, (step + 1) * global_batch_size)
    epochs, places = np.divmod(stream, num_examples)
    chosen = np.empty_like(stream)
    for epoch in np.unique(epochs):
        order = Permutation(num_examples, seed, "finetuning order", int(epoch))
        chosen[epochs == epoch] = order[places[epochs == epoch]]
    return chosen
