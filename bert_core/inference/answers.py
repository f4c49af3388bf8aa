"""Answers to questions, read from a text of any length."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bert_core.backends.precision import Precision
from bert_core.inference.texts import run_batches, with_head, with_marks
from bert_core.inference.windows import Window, longest_question, question_windows
from bert_core.model.catalogue import Model, SpanPredictor
from bert_core.vocabulary import WordPieceTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A span of the context, or nothing where the text does not answer."""

    text: str  # "" where there is no answer
    begin: int  # index of the first character in the context; 0 without an answer
    end: int
    score: float  # sum of the two logits
    null_score: float  # that of "no answer", the lowest over the windows


def answer(
    model: Model,
    tokenizer: WordPieceTokenizer,
    question: str,
    context: str,
    *,
    max_answer_tokens: int = 30,
    stride: int | None = None,
    null_threshold: float | None = None,
    batch_tokens: int | None = None,
    precision: Precision = "float32",
) -> Answer:
    """The span of `context` that answers `question` best.

    A context too long for the model is read in windows that advance by `stride` tokens, or by half
    a window. With `null_threshold` the answer is empty where "no answer" beats the best span by
    more than it (Devlin et al., 2019, section 4.3); without it some span is returned, of a context
    with a word. A question of more than 64 tokens loses its end, as in training. Raises ValueError
    for a model with another head.
    """
    model = with_head(model, SpanPredictor)
    context_ids, spans = tokenizer.encode_with_offsets(context)
    if not context_ids:
        return Answer(text="", begin=0, end=0, score=0.0, null_score=0.0)
    readable = model.config.max_position_embeddings
    question_ids = tokenizer.encode(question)[: longest_question(readable)]
    encoded, windows = question_windows(tokenizer, question_ids, context_ids, readable, stride)
    null_score, best, begin, end = torch.inf, -torch.inf, 0, 0
    for members, lengths, values in run_batches(
        model, encoded, model, batch_tokens=batch_tokens, precision=precision
    ):
        for index, logits in zip(members.tolist(), values.split(lengths), strict=True):
            window = windows[index]
            null_score = min(null_score, float(logits[0].sum()))
            score, first, last = best_span(inside(logits, window), max_answer_tokens)
            if score > best:
                best = score
                begin = spans[window.first_token + first][0]
                end = with_marks(context, spans[window.first_token + last][1])
    if null_threshold is not None and null_score - best > null_threshold:
        begin = end = 0
    return Answer(text=context[begin:end], begin=begin, end=end, score=best, null_score=null_score)


def best_span(logits: Tensor, max_tokens: int) -> tuple[float, int, int]:
    """Score, first and last token of the best span of at most `max_tokens` in [S, 2] logits."""
    scores = logits[:, :1] + logits[:, 1]  # [S, S] first by last
    is_span = torch.ones_like(scores, dtype=torch.bool).triu().tril(max_tokens - 1)
    index = int(scores.masked_fill(~is_span, -torch.inf).argmax())
    first, last = divmod(index, scores.shape[1])
    return float(scores[first, last]), first, last


def inside(logits: Tensor, window: Window) -> Tensor:
    """The logits of the context's tokens alone."""
    return logits[window.num_before : window.num_before + window.num_tokens]
