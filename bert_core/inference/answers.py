"""Answers to questions, read from a text of any length."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bert_core.backends.precision import Precision
from bert_core.inference.asking import run_batches
from bert_core.inference.texts import EncodedTexts
from bert_core.model.catalogue import Model, SpanPredictor
from bert_core.vocabulary import WordPieceTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A span of the context, or nothing where the text does not answer."""

    text: str  # "" where there is no answer
    begin: int  # index of the first character in the context; 0 without an answer
    end: int
    score: float  # sum of the two logits
    null_score: float  # that of "no answer", the least over the windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A part of the context that is read together with the question."""

    first_token: int  # of the context
    num_tokens: int
    num_before: int  # tokens of the sequence before the context: [CLS] question [SEP]


def answer(
    model: Model,
    tokenizer: WordPieceTokenizer,
    question: str,
    context: str,
    *,
    max_answer_tokens: int = 30,
    stride: int = 128,
    null_threshold: float | None = None,
    batch_tokens: int | None = None,
    precision: Precision = "float32",
) -> Answer:
    """The span of `context` that answers `question` best.

    A context too long for the model is read in windows that advance by `stride` tokens. With
    `null_threshold` the answer is empty where "no answer" beats the best span by more than it
    (Devlin et al., 2019, section 4.3); without it some span is always returned. Raises ValueError
    for a model with another head, an empty context, or a question that leaves no tokens for one.
    """
    if not isinstance(model, SpanPredictor):
        raise ValueError(f"answering needs a model with the head {SpanPredictor.head_name}, "
                         f"got {model.head_name}")  # fmt: skip
    context_ids, spans = tokenizer.encode_with_offsets(context)
    if not context_ids:
        raise ValueError("the context must hold a word to answer with, got none")
    question_ids = tokenizer.encode(question)
    encoded, windows = question_windows(
        tokenizer, question_ids, context_ids, model.config.max_position_embeddings, stride
    )
    null_score, best, begin, end = torch.inf, -torch.inf, 0, 0
    for members, lengths, values in run_batches(
        model, encoded, model, batch_tokens=batch_tokens, precision=precision
    ):
        for index, logits in zip(members.tolist(), values.split(lengths), strict=True):
            window = windows[index]
            null_score = min(null_score, float(logits[0].sum()))
            score, first, last = best_span(_inside(logits, window), max_answer_tokens)
            if score > best:
                best = score
                begin = spans[window.first_token + first][0]
                end = spans[window.first_token + last][1]
    if null_threshold is not None and null_score - best > null_threshold:
        begin = end = 0
    return Answer(text=context[begin:end], begin=begin, end=end, score=best, null_score=null_score)


def question_windows(
    tokenizer: WordPieceTokenizer,
    question_ids: list[int],
    context_ids: list[int],
    max_tokens: int,
    stride: int,
) -> tuple[EncodedTexts, list[Window]]:
    """[CLS] question [SEP] window [SEP] for windows that together cover the context.

    Raises ValueError where the question leaves no tokens for a window.
    """
    if stride < 1:
        raise ValueError(f"stride must be at least 1, got {stride}")
    start = [tokenizer.cls_id, *question_ids, tokenizer.sep_id]
    window_size = max_tokens - len(start) - 1
    if window_size < 1:
        raise ValueError(
            f"a question must leave some of {max_tokens} tokens for the context, "
            f"got {len(question_ids)} tokens; ask more briefly"
        )
    windows = [
        Window(
            first_token=first,
            num_tokens=min(window_size, len(context_ids) - first),
            num_before=len(start),
        )
        for first in _window_starts(len(context_ids), window_size, min(stride, window_size))
    ]
    sequences = [
        [*start, *context_ids[w.first_token : w.first_token + w.num_tokens], tokenizer.sep_id]
        for w in windows
    ]
    starts = [len(start)] * len(windows)
    return EncodedTexts(sequences=sequences, segment_b_start=starts, num_truncated=0), windows


def best_span(logits: Tensor, max_tokens: int) -> tuple[float, int, int]:
    """Score, first and last token of the best span of at most `max_tokens` in [S, 2] logits."""
    scores = logits[:, :1] + logits[:, 1]  # [S, S] first by last
    is_span = torch.ones_like(scores, dtype=torch.bool).triu().tril(max_tokens - 1)
    index = int(scores.masked_fill(~is_span, -torch.inf).argmax())
    first, last = divmod(index, scores.shape[1])
    return float(scores[first, last]), first, last


def _window_starts(num_tokens: int, window_size: int, stride: int) -> Iterator[int]:
    first = 0
    yield first
    while first + window_size < num_tokens:
        first += stride
        yield first


def _inside(logits: Tensor, window: Window) -> Tensor:
    return logits[window.num_before : window.num_before + window.num_tokens]
