"""Items as the encoder reads them, as answers ask for them, and as training takes its batches."""

import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from bert_core.batch import Batch, LabelledBatch, RaggedBatch
from bert_core.inference.texts import (
    BATCH_TOKENS,
    EncodedTexts,
    Text,
    TextWindows,
    encode_texts,
    text_windows,
)
from bert_core.model.catalogue import Model, MultiLabelClassifier, SequenceClassifier
from bert_core.randomness import Permutation
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.io.tables import is_shown
from pipelines.tasks import BadItemError, Item, Reading, TaskExamples
from pipelines.train.ranks import sum_over_ranks

# Cyrillic and Greek small letters by the Latin ones that they look like, Persian by Arabic ones,
# dashes and apostrophes. What chooses between two pictures of a sign, Arabic's tatweel and the dot
# of a Turkish i are not seen at all.
_LOOKS_LIKE: Final = {
    **str.maketrans("авеёкмнорстухіїјѕԁԛԝαεικνορτυχ−‐‑–—", "abeëkmhopctyxiïjsdqwaeikvoptux-----"),
    **str.maketrans("یک’‘", "يك''"),
    **dict.fromkeys([*range(0xFE00, 0xFE10), 0x0640, 0x0307]),
}
_PARTING: Final = re.compile(r"(?<=[^\W\d_])[-_](?=[^\W\d_])")  # words, not numbers
_QUOTED: Final = re.compile(
    r"""'.+'|".+"|“.+”|‘.+’|«.+»|`.+`|b'.+'|b".+"|\[\s*(['"]).+\1\s*\]""", re.DOTALL
)
# What lists of labels have between them: signs, blanks, or a word.
_BETWEEN_LABELS: Final = (
    re.compile(r"\\n|[^\w\s]+|\n"),
    re.compile(r"\\n|\W+"),
    re.compile(r"\s+(?:and|or|und|oder|et|ou|y|e|и|или|और)\s+"),
)
_NONE: Final = frozenset({"-", "--", "?", "??", "–", "—"})
_DECIMAL: Final = re.compile(r"-?\d+[.,]\d+")
_WHOLE_NUMBER: Final = re.compile(r"-?\d+(\.0+)?")


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


def check_classes(classes: Sequence[str], num_items: int, items: str, advice: str) -> None:
    """Raise UserError where there are too many classes for so few items."""
    if len(classes) > num_items // 2:
        raise UserError(
            f"found {len(classes)} labels on {num_items} {items}, too few of each to train on; "
            f"check {advice}"
        )


def check_known(heldout: set[str], known: Sequence[str]) -> None:
    """Raise UserError for classes that no training item has, and for those that are no classes."""
    check_distinct([*known, *sorted(heldout)])
    check_single([*known, *sorted(heldout)])
    unknown = sorted(heldout - set(known))
    if unknown:
        raise UserError(
            f"the labels {unknown[:5]} are only among the held-out texts; add training texts "
            "with them, correct them, or leave these held-out texts out"
        )


def check_single(labels: Iterable[str]) -> None:
    """Raise UserError for a label that is none, and for one that names two of the others.

    None are dashes and question marks among words, and a -1 beside classes counted from 0.
    """
    others = dict.fromkeys(labels)
    classes = [label for label in others if label not in _NONE]
    are_words = len(classes) > 1 and all(any(map(str.isalnum, label)) for label in classes)
    none = next((label for label in others if label in _NONE and len(others) > 2), None)
    if none is not None and are_words:
        raise UserError(f"the label {none!r} seems to stand for none; leave its items out")
    if {"-1", "0", "1", "2"} <= {*others} and "-2" not in others:
        raise UserError("the label '-1' seems to stand for none; leave its items out, or name it")
    names = {_without_signs(label) for label in others}
    for label in others:
        if not _DECIMAL.fullmatch(label) and any(
            _names_several(label, between, names) for between in _BETWEEN_LABELS
        ):
            raise UserError(
                f"the label {label!r} names several of the others; learn them with "
                "dataset.family=multi-label and label_separator, or give it a name of its own"
            )


def _without_signs(label: str) -> str:
    return label.strip(string.punctuation + string.whitespace)


def _names_several(label: str, between: re.Pattern[str], names: set[str]) -> bool:
    # Marks, such as vowel signs, belong to the letters before them.
    shielded = "".join("_" if unicodedata.category(each)[0] == "M" else each for each in label)
    edges = [0, *chain.from_iterable(m.span() for m in between.finditer(shielded)), len(label)]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    parts = [_without_signs(label[begin:end]) for begin, end in pairs]
    parts = [part for part in parts if part]
    return len(parts) > 1 and {*parts} <= names


def check_distinct(labels: Iterable[str]) -> None:
    """Raise UserError where two labels differ only in what nobody sees or means.

    That is case, width, blanks, invisible marks, letters of two scripts that look the same, kinds
    of dashes, whether words are parted by them or by `_`, and how a whole number is written (1, 01,
    1.0). Likewise for a label in quotes.
    """
    seen: dict[str, str] = {}
    for label in dict.fromkeys(labels):
        if _QUOTED.fullmatch(label):
            raise UserError(f"the label {label} stands in quotes; leave them out")
        letters = unicodedata.normalize("NFKC", label).casefold().translate(_LOOKS_LIKE)
        shown = "".join(filter(is_shown, _PARTING.sub("", letters)))
        if _WHOLE_NUMBER.fullmatch(shown):
            shown = str(int(shown.partition(".")[0]))
        other = seen.setdefault(shown, label)
        if other != label:
            raise UserError(f"the labels {other!r} and {label!r} look the same; write them alike")


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
        reads_windows=reading.text_windows,
    )


def outputs(model: Model, texts: EncodedTexts, reading: Reading, *shape: int) -> np.ndarray:
    """[N, *shape] of all ranks' texts."""
    values = np.zeros((len(texts.sequences), *shape))
    for members, tokens in share(texts, reading):
        values[members] = model(tokens).float().numpy()
    return sum_over_ranks(values)


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
    means: np.ndarray = sum_over_ranks(sums) / windows.num_windows[:, None]
    return means


def share(texts: EncodedTexts, reading: Reading) -> Iterator[tuple[np.ndarray, RaggedBatch]]:
    """This rank's batches, and which texts each holds: those of one process, shared out.

    They are the batches of `bert_core.inference`, whatever the number of ranks, so that who asks a
    published model gets the same bits.
    """
    for number, (members, tokens) in enumerate(texts.batches(BATCH_TOKENS)):
        if number % reading.world_size == reading.rank:
            yield members, tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """N examples, each of `per_example` sequences and one label.

    `labels` holds what `LabelledBatch` takes: an array of N rows, or N arrays, one for each token
    of a sequence, which a batch joins.
    """

    encoded: EncodedTexts
    labels: np.ndarray | Sequence[np.ndarray]
    per_example: int = 1
    left_out: str = ""  # which items are no examples, and why

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
