"""From texts to ragged batches: special tokens, truncation, windows, batches of similar lengths."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_core.backends.context import Precision
from bert_core.batch import RaggedBatch
from bert_core.model.catalogue import Model
from bert_core.vocabulary import WordPieceTokenizer

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

Text = str | tuple[str, str]  # a text, or a pair of texts

# The fastest on a CPU: with four times as many it took a quarter longer.
BATCH_TOKENS = 2048
_GPU_TOKENS: Final = 1 << 14  # enough to keep a GPU busy
_QUESTION_TOKENS: Final = 64  # or half of what is read, where that is less


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedTexts:
    """[CLS] A [SEP] or [CLS] A [SEP] B [SEP] of each text, and how many had to be cut."""

    sequences: list[list[int]]
    segment_b_start: list[int]  # the length where there is one segment
    num_truncated: int

    def batches(
        self, batch_tokens: int, *, is_padded: bool = False
    ) -> Iterator[tuple[NDArray[np.int64], RaggedBatch]]:
        """Batches of at most `batch_tokens` tokens, and which texts each holds.

        With `is_padded` every text counts as long as the longest of its batch: then memory for the
        B * S^2 pairs of tokens stays below `batch_tokens` times the longest. Longest first, so that
        lack of memory shows at once. Equal texts make equal batches. A longer text is a batch by
        itself.
        """
        lengths = np.array([len(sequence) for sequence in self.sequences])
        order = np.argsort(-lengths, kind="stable")
        begin = 0
        while begin < order.size:
            if is_padded:
                fitting = batch_tokens // int(lengths[order[begin]])
            else:
                total = np.cumsum(lengths[order[begin:]])
                fitting = int(np.searchsorted(total, batch_tokens, side="right"))
            count = max(1, fitting)
            members = order[begin : begin + count]
            yield (
                members,
                RaggedBatch.from_sequences(
                    [self.sequences[index] for index in members],
                    [self.segment_b_start[index] for index in members],
                ),
            )
            begin += count


def encode_texts(
    tokenizer: WordPieceTokenizer, texts: Sequence[Text], max_tokens: int
) -> EncodedTexts:
    """Encode texts and pairs, cut to `max_tokens` tokens with the special ones.

    A single text loses its end; of a pair the longer text loses its end first, as in the
    `tokenizers` library. Raises ValueError if `max_tokens` holds only the special tokens, and for
    what is not a list of texts.
    """
    check_texts(texts)
    firsts = [text if isinstance(text, str) else text[0] for text in texts]
    different = list(dict.fromkeys(firsts))  # each choice of one question has its text
    ids_of = dict(zip(different, tokenizer.encode_batch(different), strict=True))
    pairs = [index for index, text in enumerate(texts) if not isinstance(text, str)]
    seconds = dict(
        zip(pairs, tokenizer.encode_batch([texts[index][1] for index in pairs]), strict=True)
    )
    sequences, starts, num_truncated = [], [], 0
    for index, first in enumerate(ids_of[text] for text in firsts):
        second = seconds.get(index)
        budget = max_tokens - (2 if second is None else 3)
        if budget < 1:
            raise ValueError(f"max_tokens must allow for a token of the text, got {max_tokens}")
        num_truncated += len(first) + len(second or ()) > budget
        if second is None:
            sequence, start = joined(tokenizer, first[:budget])
        else:
            num_first, num_second = _shares(len(first), len(second), budget)
            sequence, start = joined(tokenizer, first[:num_first], second[:num_second])
        sequences.append(sequence)
        starts.append(start)
    return EncodedTexts(sequences=sequences, segment_b_start=starts, num_truncated=num_truncated)


def joined(tokenizer: WordPieceTokenizer, *parts: list[int]) -> tuple[list[int], int]:
    """[CLS] A [SEP], or [CLS] A [SEP] B [SEP], and where B begins: at the end if there is none."""
    sequence, start = [tokenizer.cls_id], 0
    for part in parts:
        sequence += [*part, tokenizer.sep_id]
        start = start or len(sequence)
    return sequence, start


def with_marks(text: str, end: int) -> int:
    """Where what ends at `end` really does: after combining marks, which uncased tokens lack."""
    while end < len(text) and unicodedata.category(text[end]) == "Mn":
        end += 1
    return end


def check_texts(texts: Sequence[Text]) -> None:
    """Raise ValueError for what is not a list of texts or pairs of texts."""
    if isinstance(texts, str) or not len(texts):
        raise ValueError(f"texts must be a list of at least one text, got {texts!r:.80}")
    readable = set[str]()  # looked through once where it is the first of many pairs
    for index, text in enumerate(texts):
        parts = (text,) if isinstance(text, str) else text
        is_pair = isinstance(text, tuple) and len(text) == 2
        if not (isinstance(text, str) or is_pair) or not all(isinstance(p, str) for p in parts):
            raise ValueError(f"text {index} must be a text or a pair of texts, got {text!r:.80}")
        if any(map(_LONE_SURROGATE.search, {*parts} - readable)):
            raise ValueError(f"text {index} must be Unicode, got {text!r:.80} with a surrogate")
        readable.update(parts)


def _shares(num_first: int, num_second: int, budget: int) -> tuple[int, int]:
    """How many tokens of each of two texts fit into `budget`, cutting the longer one first.

    Where both are cut the longer one keeps the odd token, of equal ones the second.
    """
    if num_first + num_second <= budget:
        return num_first, num_second
    shorter = min(num_first, num_second, budget // 2)
    longer = budget - shorter
    return (longer, shorter) if num_first > num_second else (shorter, longer)


M = TypeVar("M", bound=Model)


class Output(NamedTuple):
    """The result for one batch, on the CPU in float32."""

    members: Tensor  # [B] which texts they are
    lengths: tuple[int, ...]  # B numbers of tokens
    values: Tensor


def with_head(model: Model, head: type[M]) -> M:
    """The model, as one with this head; raises ValueError for another one."""
    if not isinstance(model, head):
        raise ValueError(f"a model with the head {head.head_name} is needed, got {model.head_name}")
    return model


@torch.inference_mode()
def run_batches(
    model: Model,
    encoded: EncodedTexts,
    compute: Callable[[RaggedBatch], Tensor],
    precision: Precision,
) -> list[Output]:
    """The results of `compute` for batches on the model's device that together hold all texts.

    A batch holds as many tokens as suit the device, on a GPU padding included. Raises ValueError
    for another precision.
    """
    is_gpu = model.device.type == "cuda"
    batches = encoded.batches(_GPU_TOKENS if is_gpu else BATCH_TOKENS, is_padded=is_gpu)
    with model.inference(precision, sum(map(len, encoded.sequences))):
        return [
            Output(
                torch.from_numpy(members),
                tokens.lengths,
                compute(tokens.to(model.device)).float().cpu(),
            )
            for members, tokens in batches
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A part of the context that is read together with the question."""

    first_token: int  # of the context
    num_tokens: int
    num_before: int  # tokens of the sequence before the context: [CLS] question [SEP]


def longest_question(max_tokens: int) -> int:
    """Tokens of a question that are read, where a window has `max_tokens`: 64, as published."""
    return min(_QUESTION_TOKENS, max(1, max_tokens // 2 - 3))


def question_windows(
    tokenizer: WordPieceTokenizer, question_ids: list[int], context_ids: list[int], max_tokens: int
) -> tuple[EncodedTexts, list[Window]]:
    """[CLS] question [SEP] window [SEP] for windows that together cover the context.

    They advance by half a window: then every span of up to half a window is
    whole in one of them. The question is at most `longest_question`.
    """
    start = [tokenizer.cls_id, *question_ids, tokenizer.sep_id]
    window_size = max_tokens - len(start) - 1
    assert window_size >= 1
    windows = [
        Window(
            first_token=first,
            num_tokens=min(window_size, len(context_ids) - first),
            num_before=len(start),
        )
        for first in _window_starts(len(context_ids), window_size)
    ]
    sequences = [
        [*start, *context_ids[w.first_token : w.first_token + w.num_tokens], tokenizer.sep_id]
        for w in windows
    ]
    starts = [len(start)] * len(windows)
    return EncodedTexts(sequences=sequences, segment_b_start=starts, num_truncated=0), windows


class TextWindows(NamedTuple):
    """Sequences of texts, one or more each."""

    encoded: EncodedTexts
    texts: NDArray[np.int64]  # for each sequence, which text it is of
    num_windows: NDArray[np.int64]  # for each text, how many sequences it has


def text_windows(
    tokenizer: WordPieceTokenizer,
    texts: Sequence[Text],
    max_tokens: int,
    *,
    reads_windows: bool = True,
) -> TextWindows:
    """Texts and pairs as sequences of at most `max_tokens` tokens with the special ones.

    Longer texts are read in windows that advance by half a window; pairs are cut. Without
    `reads_windows` there is one cut sequence each. Raises ValueError if `max_tokens` holds only the
    special tokens, and for what is not a list of texts.
    """
    whole = encode_texts(tokenizer, texts, max_tokens)
    alone = np.ones(len(texts), np.int64)
    if not reads_windows or not whole.num_truncated:
        return TextWindows(whole, np.arange(len(texts)), alone)
    sequences: list[list[int]] = []
    starts: list[int] = []
    owners: list[int] = []
    num_truncated, room = whole.num_truncated, max_tokens - 2
    for index, text in enumerate(texts):
        ids = tokenizer.encode(text) if isinstance(text, str) else []
        parts = [(whole.sequences[index], whole.segment_b_start[index])]
        if len(ids) > room:
            num_truncated -= 1
            firsts = _window_starts(len(ids), room)
            parts = [joined(tokenizer, ids[first : first + room]) for first in firsts]
        sequences += [sequence for sequence, _ in parts]
        starts += [start for _, start in parts]
        owners += [index] * len(parts)
    encoded = EncodedTexts(sequences=sequences, segment_b_start=starts, num_truncated=num_truncated)
    counts = np.bincount(owners, minlength=len(texts))
    return TextWindows(encoded, np.array(owners, np.int64), counts)


class WordWindow(NamedTuple):
    """A run of whole words between [CLS] and [SEP], and which of them get their label here."""

    sequence: list[int]
    words: list[int]  # indices of these words
    places: list[int]  # where in the sequence each has its first token


def word_windows(
    tokenizer: WordPieceTokenizer, tokens: Sequence[list[int]], max_tokens: int
) -> list[WordWindow]:
    """Windows of at most `max_tokens` tokens over whole words.

    They advance by about half a window. `tokens` holds the ids of each word,
    at least one. Every word gets its label in one window: the one with most context on the word's
    shorter side. A word longer than a window is cut. Raises ValueError if `max_tokens` holds only
    the special tokens.
    """
    room = max_tokens - 2
    if room < 1:
        raise ValueError(f"max_tokens must allow for a token of the text, got {max_tokens}")
    sizes = [min(len(word), room) for word in tokens]
    runs = list(_word_runs(sizes, room))
    shown = (
        [token for word in tokens[first:last] for token in word[:room]] for first, last in runs
    )
    windows = [WordWindow(joined(tokenizer, ids)[0], [], []) for ids in shown]
    best: dict[int, tuple[int, int, int]] = {}  # of a word: tokens to the nearer side, run, place
    for run, (first, last) in enumerate(runs):
        before, total = 0, sum(sizes[first:last])
        for word in range(first, last):
            # The ends of the text hide nothing.
            left = before if first else room
            right = total - before - sizes[word] if last < len(sizes) else room
            seen = min(left, right)
            if word not in best or seen > best[word][0]:
                best[word] = (seen, run, before + 1)
            before += sizes[word]
    for word in sorted(best):
        _, run, place = best[word]
        windows[run].words.append(word)
        windows[run].places.append(place)
    # A long word can cut a window short, whose words then all have more context in the one before.
    return [window for window in windows if window.words]


def _word_runs(sizes: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """First word and the one after the last of each window."""
    first = 0
    while True:
        last, total = first, 0
        while last < len(sizes) and total + sizes[last] <= room:
            total += sizes[last]
            last += 1
        yield first, last
        if last >= len(sizes):
            return
        passed = 0
        following = first
        while following < last and passed < max(1, room // 2):
            passed += sizes[following]
            following += 1
        first = following


def _window_starts(num_tokens: int, window_size: int) -> Iterator[int]:
    first = 0
    yield first
    while first + window_size < num_tokens:
        first += max(1, window_size // 2)
        yield first
