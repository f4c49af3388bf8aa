"""What a fine-tuned model answers: classes, numbers, choices, spans and tags.

N = texts, C = classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_core.backends.context import Precision
from bert_core.inference.texts import (
    EncodedTexts,
    Text,
    Window,
    WordWindow,
    check_texts,
    encode_texts,
    longest_question,
    question_windows,
    run_batches,
    text_windows,
    with_head,
    with_marks,
    word_windows,
)
from bert_core.inference.words import places_of_words
from bert_core.model.catalogue import (
    Model,
    MultiLabelClassifier,
    MultipleChoice,
    SequenceClassifier,
    SequenceRegressor,
    SpanPredictor,
    TokenClassifier,
)
from bert_core.model.task_models import class_names
from bert_core.vocabulary import WordPieceTokenizer

ANSWER_TOKENS: Final = 30  # of the longest span that is an answer, as published


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classified:
    """The class of each text, in the order of the texts."""

    labels: list[str]
    probabilities: NDArray[np.float32]  # [N, C]
    num_truncated: int  # texts longer than the model can read, whose end was left out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assigned:
    """None, some or all classes of each text, in the order of the texts."""

    labels: list[list[str]]  # of each text, the likeliest first
    probabilities: NDArray[np.float32]  # [N, C], independent of each other
    num_truncated: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rated:
    """The number of each text, in the order of the texts."""

    values: NDArray[np.float32]  # [N]
    num_truncated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which of several continuations fits best."""

    index: int
    probabilities: list[float]
    num_truncated: int


def classify(
    model: Model,
    tokenizer: WordPieceTokenizer,
    texts: Sequence[Text],
    precision: Precision = "float32",
) -> Classified:
    """The class of each text or pair of texts, with the probabilities of all classes.

    A model that reads windows averages theirs. Raises ValueError for a model with another head, and
    for what is not a list of texts.
    """
    model = with_head(model, SequenceClassifier)
    probabilities, num_truncated = _probabilities(
        model, tokenizer, texts, lambda logits: logits.softmax(dim=-1), precision
    )
    names = class_names(model)
    return Classified(
        labels=[names[index] for index in probabilities.argmax(dim=-1).tolist()],
        probabilities=probabilities.float().numpy(),
        num_truncated=num_truncated,
    )


def assign_labels(
    model: Model,
    tokenizer: WordPieceTokenizer,
    texts: Sequence[Text],
    *,
    threshold: float = 0.5,
    precision: Precision = "float32",
) -> Assigned:
    """The classes whose probability reaches `threshold`, of each text or pair of texts.

    A model that reads windows averages theirs. Raises ValueError for a model with another head, a
    threshold outside of [0, 1], and for what is not a list of texts.
    """
    model = with_head(model, MultiLabelClassifier)
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(f"threshold must lie in [0, 1], got {threshold}")
    probabilities, num_truncated = _probabilities(model, tokenizer, texts, torch.sigmoid, precision)
    names = class_names(model)
    best = probabilities.sort(dim=-1, descending=True, stable=True)
    return Assigned(
        labels=[
            [names[i] for i, p in zip(indices, values, strict=True) if p >= threshold]
            for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ],
        probabilities=probabilities.float().numpy(),
        num_truncated=num_truncated,
    )


def _probabilities(
    model: SequenceClassifier | MultiLabelClassifier,
    tokenizer: WordPieceTokenizer,
    texts: Sequence[Text],
    probable: Callable[[Tensor], Tensor],
    precision: Precision,
) -> tuple[Tensor, int]:
    """[N, C] means over the windows of each text, and how many texts were cut.

    In float64, so that the sums do not depend on the order of the batches.
    """
    max_tokens = model.config.max_position_embeddings
    windows = text_windows(tokenizer, texts, max_tokens, reads_windows=model.reads_windows)
    owners = torch.from_numpy(windows.texts)
    sums = torch.zeros(len(texts), model.num_labels, dtype=torch.float64)
    for members, _, logits in run_batches(model, windows.encoded, model, precision):
        sums.index_add_(0, owners[members], probable(logits).double())
    means = sums / torch.from_numpy(windows.num_windows)[:, None]
    return means, windows.encoded.num_truncated


def rate(
    model: Model,
    tokenizer: WordPieceTokenizer,
    texts: Sequence[Text],
    precision: Precision = "float32",
) -> Rated:
    """The number a regression model gives each text or pair of texts.

    Raises ValueError for a model with another head, and for what is not a list of texts.
    """
    model = with_head(model, SequenceRegressor)
    values, num_truncated = _numbers(model, tokenizer, texts, precision)
    return Rated(values=values.numpy(), num_truncated=num_truncated)


def choose(
    model: Model,
    tokenizer: WordPieceTokenizer,
    prompt: str,
    choices: Sequence[str],
    precision: Precision = "float32",
) -> Chosen:
    """Which of `choices` continues `prompt` best.

    Raises ValueError for a model with another head, and if there are no choices.
    """
    model = with_head(model, MultipleChoice)
    pairs = [(prompt, choice) for choice in choices]
    scores, num_truncated = _numbers(model, tokenizer, pairs, precision)
    return Chosen(
        index=int(scores.argmax()),
        probabilities=scores.softmax(dim=0).tolist(),
        num_truncated=num_truncated,
    )


def _numbers(
    model: SequenceRegressor | MultipleChoice,
    tokenizer: WordPieceTokenizer,
    texts: Sequence[Text],
    precision: Precision,
) -> tuple[Tensor, int]:
    """[N] the head's number for each text, and how many texts were cut."""
    encoded = encode_texts(tokenizer, texts, model.config.max_position_embeddings)
    numbers = torch.empty(len(texts))
    for members, _, values in run_batches(model, encoded, model, precision):
        numbers[members] = values
    return numbers, encoded.num_truncated


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
    precision: Precision = "float32",
) -> Answer:
    """The span of `context` that answers `question` best.

    A context too long for the model is read in windows that advance by half a window. A context
    with a word always gives a span: compare its score with that of "no answer" (Devlin et al.,
    2019, section 4.3). A question of more than 64 tokens loses its end, as in training. Raises
    ValueError for a model with another head.
    """
    model = with_head(model, SpanPredictor)
    context_ids, spans = tokenizer.encode_with_offsets(context)
    if not context_ids:
        return Answer(text="", begin=0, end=0, score=0.0, null_score=0.0)
    readable = model.config.max_position_embeddings
    question_ids = tokenizer.encode(question)[: longest_question(readable)]
    encoded, windows = question_windows(tokenizer, question_ids, context_ids, readable)
    null_score, best, begin, end = torch.inf, -torch.inf, 0, 0
    for members, lengths, values in run_batches(model, encoded, model, precision):
        for index, logits in zip(members.tolist(), values.split(lengths), strict=True):
            window = windows[index]
            null_score = min(null_score, float(logits[0].sum()))
            score, first, last = best_span(inside(logits, window), ANSWER_TOKENS)
            if score > best:
                best = score
                begin = spans[window.first_token + first][0]
                end = with_marks(context, spans[window.first_token + last][1])
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedWord:
    """A word of a text, where it is, and its tag."""

    word: str
    begin: int  # index of the word's first character in the text; of a list, in " ".join(words)
    end: int  # index after its last
    label: str
    probability: float


class _Word(NamedTuple):
    text: str
    begin: int
    end: int
    tokens: list[int]


def tag(
    model: Model,
    tokenizer: WordPieceTokenizer,
    texts: Sequence[str | list[str]],
    precision: Precision = "float32",
) -> list[list[TaggedWord]]:
    """The words of each text, or of each list of words, with their tags.

    A word has the tag of its first token, as in training. A text longer than the model reads is
    read in windows that advance by half a window, and each word has its tag from the window with
    most context around it. Words are separated by white space. What Unicode calls punctuation is a
    separate word at the start or end of a word; Chinese characters, and the wide marks of Chinese
    and Japanese, are separate words everywhere. The words of a list stay as they are, one tag each.
    Raises ValueError for a model with another head, and for what is not a list of texts.
    """
    model = with_head(model, TokenClassifier)
    alone = ["" if isinstance(text, list) else text for text in texts]
    check_texts(texts if isinstance(texts, str) else alone)
    if not all(isinstance(text, str) for text in alone):
        raise ValueError("texts that are tagged must be single ones, got a pair")
    words = [
        _given_words(tokenizer, text) if isinstance(text, list) else _words(tokenizer, text)
        for text in texts
    ]
    max_tokens = model.config.max_position_embeddings
    windows = [
        (index, window)
        for index, each in enumerate(words)
        for window in word_windows(tokenizer, [word.tokens for word in each], max_tokens)
    ]
    names = class_names(model)
    tagged: list[dict[int, TaggedWord]] = [{} for _ in texts]
    encoded = sequences_of([window for _, window in windows])
    for members, lengths, logits in run_batches(model, encoded, model, precision):
        rows = logits.softmax(dim=-1).split(lengths)
        for member, probabilities in zip(members.tolist(), rows, strict=True):
            index, window = windows[member]
            best = probabilities.max(dim=-1)
            for number, place in zip(window.words, window.places, strict=True):
                word = words[index][number]
                tagged[index][number] = TaggedWord(
                    word=word.text,
                    begin=word.begin,
                    end=word.end,
                    label=names[best.indices[place]],
                    probability=float(best.values[place]),
                )
    return [[each[number] for number in sorted(each)] for each in tagged]


def sequences_of(windows: Sequence[WordWindow]) -> EncodedTexts:
    """The windows as what batches are made of."""
    sequences = [window.sequence for window in windows]
    return EncodedTexts(
        sequences=sequences, segment_b_start=[len(each) for each in sequences], num_truncated=0
    )


def _words(tokenizer: WordPieceTokenizer, text: str) -> list[_Word]:
    """The words of a text that have tokens; each is encoded by itself, as in training."""
    places = places_of_words(text)
    words = [text[begin:end] for begin, end in places]
    return [
        _Word(word, begin, end, ids)
        for word, (begin, end), ids in zip(
            words, places, tokenizer.encode_batch(words), strict=True
        )
        if ids
    ]


def _given_words(tokenizer: WordPieceTokenizer, words: list[str]) -> list[_Word]:
    """Each as in training: a word without tokens is [UNK]."""
    placed, begin = [], 0
    for word, ids in zip(words, tokenizer.encode_batch(words), strict=True):
        placed.append(_Word(word, begin, begin + len(word), ids or [tokenizer.unk_id]))
        begin += len(word) + 1
    return placed
