"""Answers to questions, read from a text: SQuAD v1.1, and v2.0 with questions that have none.

Answers are scored as by SQuAD's official evaluation, Rajpurkar et al. (2016), section 6, and (2018)
for questions without an answer: they are held against every reference without case, punctuation,
articles and extra white space, and the best one counts. An answer to a question without one is
right where it is empty.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from bert_core.inference.answers import ANSWER_TOKENS, best_span, inside
from bert_core.inference.texts import (
    EncodedTexts,
    Window,
    longest_question,
    question_windows,
    with_marks,
)
from bert_core.model.catalogue import Model, SpanPredictor
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.tasks import (
    Answers,
    BadItemError,
    Baselines,
    Form,
    Item,
    Items,
    Reading,
    TaskFamily,
    by_split,
)
from pipelines.tasks.encoding import Sequences, share
from pipelines.tasks.scoring import WeightedScore, mean
from pipelines.train.ranks import sum_over_ranks

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = frozenset(string.punctuation)  # ASCII's alone, as published
_SENTENCE = re.compile(r"\S.*?(?:[.!?](?=\s)|(?=\n)|\Z)", re.DOTALL)


class SpanScore(NamedTuple):
    """Of one answer, each 0 to 1."""

    exact: float
    f1: float


class ReadQuestions(NamedTuple):
    """The windows of all questions, in the order of the questions."""

    encoded: EncodedTexts
    windows: list[Window]
    questions: list[int]  # of each window, ascending
    offsets: list[list[tuple[int, int]]]  # of each question: the characters of its context's tokens


class QuestionAnswering(TaskFamily):
    """The span of its text that answers each question, or that there is none.

    Long texts are read in windows. A window that holds a part of the answer alone is never learned
    from; one without any of it says that it holds no answer.
    """

    form: Form = "questions"
    score = "eval/f1"
    guess = "no answer"
    curve: Mapping[str, str] = {"label_loss": "eval/loss", "label_accuracy": "eval/window_accuracy"}
    model = SpanPredictor
    schema = pa.schema(
        {
            "id": pa.string(),
            "question": pa.string(),
            "context": pa.string(),
            "answers": pa.list_(pa.string()),  # none: the text does not say
            "starts": pa.list_(pa.int64()),  # of each answer, its first character in the context
        }
    )

    def item(self, record: Mapping[str, Any]) -> Item:
        """A question, its text, and its answers where they are.

        Raises BadItemError where an answer is not where it says, or something is no text.
        """
        question, context = record["question"], record["context"]
        for what, text in (("question", question), ("context", context)):
            if not isinstance(text, str) or not text.strip():
                raise BadItemError(f"have a {what}", "none" if not text else f"{text!r:.60}")
        if record["starts"] is None:
            answers = f"{record['answers']!r:.60}"
            raise BadItemError("have answers with text and answer_start", answers)
        for answer, start in zip(record["answers"], record["starts"], strict=True):
            if not isinstance(answer, str) or not answer:
                raise BadItemError("have answers that are texts", f"{answer!r:.60}")
            there = context[max(0, start) : start + len(answer)]
            if start < 0 or there != answer:
                raise BadItemError(
                    "have its answers at the offsets that it gives",
                    f"{there[:60]!r} at character {start} instead of {answer[:60]!r}",
                )
        return {
            "id": record["id"],
            "question": question,
            "context": context,
            "answers": list(record["answers"]),
            "starts": list(record["starts"]),
        }

    def group(self, item: Item) -> str:
        """Questions about the same text stay together."""
        context: str = item["context"]
        return context

    def labels(self, train: Sequence[Item], heldout: Sequence[Item]) -> tuple[str, ...]:
        """No classes; raises UserError where no question has an answer."""
        if not any(item["answers"] for item in train):
            raise UserError(
                f"none of the {len(train)} training questions has an answer; check the files"
            )
        return ()

    def described(self, train: Items, heldout: Items) -> dict[str, Any]:
        """How many have no answer, which is the score of answering none."""
        without = by_split(train, heldout, lambda rows: sum(not item["answers"] for item in rows))
        share = without["heldout"] / len(heldout.rows)
        return {"without_answer": without, "baseline/exact_match": share, "baseline/f1": share}

    def baselines(self, train: Items, heldout: Items) -> Baselines:
        """The sentence of the text that has most of the question's words; never "no answer"."""
        return {"best sentence": [_best_sentence(item) for item in heldout.rows]}

    def examples(self, items: Items, tokenizer: WordPieceTokenizer, reading: Reading) -> Sequences:
        """The windows that hold the whole answer of their question, or none of it.

        Questions with an answer that no window holds whole are left out: the other windows would
        teach that they have none.
        """
        read = read_questions(items, tokenizer, reading)
        every = [
            span_in(items.rows[number], read.offsets[number], window)
            for number, window in zip(read.questions, read.windows, strict=True)
        ]
        answered = {
            number for number, span in zip(read.questions, every, strict=True) if any(span or ())
        }
        left_out = {
            number
            for number, item in enumerate(items.rows)
            if item["answers"] and number not in answered
        }
        message = (
            f"{len(left_out):,} of {len(items.rows):,} questions have an answer that is longer "
            f"than a window of {reading.max_tokens} tokens, or that the tokenizer leaves nothing of"
        )
        kept = [
            place
            for place, (number, span) in enumerate(zip(read.questions, every, strict=True))
            if span is not None and number not in left_out
        ]
        spans = [every[place] for place in kept]
        encoded = EncodedTexts(
            sequences=[read.encoded.sequences[place] for place in kept],
            segment_b_start=[read.encoded.segment_b_start[place] for place in kept],
            num_truncated=read.encoded.num_truncated,
        )
        return Sequences(
            encoded=encoded,
            labels=np.array(spans, np.int64).reshape(-1, 2),
            left_out=f"{message}: they are not learned" if left_out else "",
        )

    @torch.inference_mode()
    def answers(
        self, model: Model, tokenizer: WordPieceTokenizer, items: Items, reading: Reading
    ) -> Answers:
        """Of each question its best span and how much better "no answer" is than that."""
        read = read_questions(items, tokenizer, reading)
        # Of each window: the score of "no answer", of the best span, its first and last token.
        best = np.zeros((len(read.windows), 4), np.float64)
        for members, tokens in share(read.encoded, reading):
            rows = model(tokens).float().split(tokens.lengths)
            for member, logits in zip(members.tolist(), rows, strict=True):
                window = read.windows[member]
                if not window.num_tokens:
                    continue  # of a context the tokenizer leaves nothing
                score, first, last = best_span(inside(logits, window), ANSWER_TOKENS)
                best[member] = (
                    float(logits[0].sum()), score,
                    window.first_token + first, window.first_token + last,
                )  # fmt: skip
        best = sum_over_ranks(best)
        values: list[dict[str, Any]] = []
        ends = np.searchsorted(read.questions, np.arange(len(items.rows)), side="right")
        for number, item in enumerate(items.rows):
            of_question = best[ends[number - 1] if number else 0 : ends[number]]
            null_score, (_, score, first, last) = (
                of_question[:, 0].min(), of_question[of_question[:, 1].argmax()],
            )  # fmt: skip
            offsets = read.offsets[number]
            begin = end = 0
            if offsets:  # else the tokenizer leaves nothing of the context
                begin, end = offsets[int(first)][0], offsets[int(last)][1]
                end = with_marks(item["context"], end)
            values.append(
                {
                    "text": item["context"][begin:end],
                    "begin": begin,
                    "null_lead": float(null_score - score),
                }
            )
        return Answers(values, read.encoded.num_truncated)

    def scores(self, answers: Answers, items: Items) -> Mapping[str, WeightedScore]:
        """Exact match and F1 as SQuAD's evaluation computes them.

        Where some questions have no answer, none is given where "no answer" scores better than any
        span.
        """
        has_none = not all(item["answers"] for item in items.rows)
        scored = [
            score_of("" if has_none and value["null_lead"] > 0 else value["text"], item["answers"])
            for value, item in zip(answers.values, items.rows, strict=True)
        ]
        return {
            "eval/exact_match": mean([score.exact for score in scored]),
            "eval/f1": mean([score.f1 for score in scored]),
        }


FAMILY = QuestionAnswering()


def _best_sentence(item: Item) -> dict[str, Any]:
    """The first of the sentences with the most words of the question, as an answer."""
    asked = _words(item["question"])
    best = max(
        _SENTENCE.finditer(item["context"]), key=lambda match: len(asked & _words(match.group()))
    )
    return {"text": best.group().rstrip(), "begin": best.start(), "null_lead": -1.0}


def _words(text: str) -> set[str]:
    return {word.strip(string.punctuation) for word in text.lower().split()}


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
        encoded, of_question = question_windows(
            tokenizer, question[:longest], ids, reading.max_tokens
        )
        sequences += encoded.sequences
        starts += encoded.segment_b_start
        windows += of_question
        questions += [number] * len(of_question)
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


def score_of(answered: str, references: Sequence[str]) -> SpanScore:
    """The best score of an answer over the references; none of them means there is no answer.

    References that are nothing but articles and punctuation count for nothing, as published.
    """
    whole = [reference for reference in references if normalized(reference)] or [""]
    return SpanScore(
        max(float(normalized(answered) == normalized(each)) for each in whole),
        max(_f1(answered, each) for each in whole),
    )


def normalized(answer: str) -> str:
    """An answer without case, ASCII punctuation, English articles and extra white space."""
    lowered = "".join(each for each in answer.lower() if each not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", lowered).split())


def _f1(answered: str, reference: str) -> float:
    words, true = normalized(answered).split(), normalized(reference).split()
    if not words or not true:
        return float(words == true)
    num_common = (Counter(words) & Counter(true)).total()
    if num_common == 0:
        return 0.0
    precision, recall = num_common / len(words), num_common / len(true)
    return 2 * precision * recall / (precision + recall)
