"""From texts to ragged batches: special tokens, truncation, and batches of similar lengths."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_core.backends.context import Precision, compute_dtype
from bert_core.batch import RaggedBatch
from bert_core.model.catalogue import Model
from bert_core.vocabulary import WordPieceTokenizer

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

Text = str | tuple[str, str]  # a text, or a pair of texts

# The fastest on a CPU: with four times as many it took a quarter longer.
BATCH_TOKENS = 2048
_GPU_TOKENS = 1 << 16  # more than enough to keep a GPU busy
_TEXTS_AT_ONCE = 8192  # encoded at a time: tokens need more memory than the text itself


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedTexts:
    """[CLS] A [SEP] or [CLS] A [SEP] B [SEP] of each text, and how many had to be cut."""

    sequences: list[list[int]]
    segment_b_start: list[int]  # the length where there is one segment
    num_truncated: int

    def batches(
        self, batch_tokens: int, *, first: int = 0, is_padded: bool = False
    ) -> Iterator[tuple[NDArray[np.int64], RaggedBatch]]:
        """Batches of at most `batch_tokens` tokens, and which texts each holds.

        With `is_padded` every text counts as long as the longest of its batch: then memory for the
        B * S^2 pairs of tokens stays below `batch_tokens` times the longest. Longest first, so that
        lack of memory shows at once, after skipping the `first` longest. Equal texts make equal
        batches. A longer text is a batch by itself.
        """
        lengths = np.array([len(sequence) for sequence in self.sequences])
        order = np.argsort(-lengths, kind="stable")
        begin = first
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


def parts_of(texts: Sequence[Text]) -> Iterator[tuple[int, Sequence[Text]]]:
    """Parts that are encoded at once, each with the index of its first text; no texts: one part.

    Raises ValueError for what is not a list of texts.
    """
    if isinstance(texts, str):
        check_texts(texts)
    for first in range(0, max(1, len(texts)), _TEXTS_AT_ONCE):
        yield first, texts[first : first + _TEXTS_AT_ONCE]


def encode_texts(
    tokenizer: WordPieceTokenizer, texts: Sequence[Text], max_tokens: int
) -> EncodedTexts:
    """Encode texts and pairs, cut to `max_tokens` tokens with the special ones.

    A single text loses its end; of a pair the longer text loses its end first, as in the
    `tokenizers` library. Raises ValueError if `max_tokens` holds only the special tokens, and for
    what is not a list of texts.
    """
    check_texts(texts)
    firsts = tokenizer.encode_batch([text if isinstance(text, str) else text[0] for text in texts])
    pairs = [index for index, text in enumerate(texts) if not isinstance(text, str)]
    seconds = dict(
        zip(pairs, tokenizer.encode_batch([texts[index][1] for index in pairs]), strict=True)
    )
    sequences, starts, num_truncated = [], [], 0
    for index, first in enumerate(firsts):
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
    if isinstance(texts, str):
        raise ValueError("texts must be a list of texts, got a single one; put it into a list")
    for index, text in enumerate(texts):
        parts = (text,) if isinstance(text, str) else text
        if not isinstance(parts, tuple) or not all(isinstance(part, str) for part in parts):
            raise ValueError(f"text {index} must be a text or a pair of texts, got {text!r}")
        if any(map(_LONE_SURROGATE.search, parts)):
            raise ValueError(f"text {index} must be Unicode, got {text!r} with a lone surrogate")
        if isinstance(text, tuple) and len(text) != 2:
            raise ValueError(f"text {index} must be a pair, got {len(text)} texts")
    if not texts:
        raise ValueError("there must be at least one text, got an empty list")


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


def with_head(model: Model, wanted: type[M]) -> M:
    """The model, as one with the wanted head; raises ValueError for another one."""
    if not isinstance(model, wanted):
        raise ValueError(
            f"a model with the head {wanted.head_name} is needed, got {model.head_name}"
        )
    return model


@torch.inference_mode()
def run_batches(
    model: Model,
    encoded: EncodedTexts,
    compute: Callable[[RaggedBatch], Tensor],
    precision: Precision,
) -> list[Output]:
    """The results of `compute` for batches on the model's device that together hold all texts.

    A batch holds as many tokens as suit the device, padding included; one that does not fit its
    memory, and those after it, are halved. Raises ValueError for another precision, and
    torch.OutOfMemoryError if not even a single text fits.
    """
    device, num_texts = model.device, len(encoded.sequences)
    outputs: list[Output] = []
    num_done = 0
    with model.inference(precision, sum(map(len, encoded.sequences))):
        is_gpu = device.type == "cuda"
        # On a GPU only its kernel for bfloat16 takes sequences of any lengths.
        is_padded = is_gpu and compute_dtype(precision, device) != torch.bfloat16
        batch_tokens = _GPU_TOKENS if is_gpu else BATCH_TOKENS
        while num_done < num_texts:
            for members, tokens in encoded.batches(
                batch_tokens, first=num_done, is_padded=is_padded
            ):
                values = _computed(compute, tokens, device)
                if values is None:
                    batch_tokens = max(1, tokens.num_tokens // 2)
                    if is_gpu:
                        torch.cuda.empty_cache()
                    break
                outputs.append(Output(torch.from_numpy(members), tokens.lengths, values))
                num_done += len(members)
    return outputs


def _computed(
    compute: Callable[[RaggedBatch], Tensor], tokens: RaggedBatch, device: torch.device
) -> Tensor | None:
    """The result, or None if several texts did not fit into memory together.

    It returns before anything is retried: the error keeps alive what filled the memory.
    """
    try:
        return compute(tokens.to(device)).float().cpu()
    except torch.OutOfMemoryError:
        if tokens.num_sequences == 1:
            raise
        return None
