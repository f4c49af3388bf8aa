"""Answers to questions, read from a text: SQuAD v1.1, and v2.0 with questions that have none."""

import math
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from bert_core.inference.answers import best_span, inside
from bert_core.inference.texts import EncodedTexts, with_marks
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
from pipelines.tasks.encoding import Sequences, read_questions, share, span_in
from pipelines.tasks.scoring import SpanScore, WeightedScore, best_threshold, mean, score_of
from pipelines.train.ranks import sum_over_ranks

_ANSWER_TOKENS = 30  # the longest span that is answered, as published
_WRONG = 20  # answers that a report shows
_SENTENCE = re.compile(r"\S.*?(?:[.!?](?=\s)|(?=\n)|\Z)", re.DOTALL)


class QuestionAnswering(TaskFamily):
    """The span of its text that answers each question, or that there is none.

    Long texts are read in windows. A window that holds a part of the answer alone is never learned
    from; one without any of it says that it holds no answer.
    """

    form: Form = "questions"
    score = "eval/f1"
    guess = "first sentence"
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
                found = "none" if text is None or isinstance(text, str) else f"{text!r:.60}"
                raise BadItemError(f"have a {what}", found)
        if record["starts"] is None:
            raise BadItemError(
                "have answers with text and answer_start", f"{record['answers']!r:.60}"
            )
        for answer, start in zip(record["answers"], record["starts"], strict=True):
            if not isinstance(answer, str):
                raise BadItemError("have answers that are texts", f"{answer!r:.60}")
            if not answer:
                raise BadItemError("have answers with text", "an empty one")
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
        """How many have no answer, and the scores of answering with the text's first sentence."""
        scores = [
            score_of(next(_sentences(item["context"]))[1], item["answers"]) for item in heldout.rows
        ]
        without = by_split(train, heldout, lambda rows: sum(not item["answers"] for item in rows))
        return {
            "without_answer": without,
            "texts_about": by_split(
                train, heldout, lambda rows: len({item["context"] for item in rows})
            ),
            "baseline/exact_match": float(np.mean([score.exact for score in scores])),
            # Of questions without an answer, answering none of them may be the better guess.
            "baseline/f1": max(
                float(np.mean([score.f1 for score in scores])),
                without["heldout"] / len(heldout.rows),
            ),
        }

    def baselines(self, train: Items, heldout: Items, encoder: Path | None) -> Baselines:
        """The sentence of the text that has most of the question's words; never "no answer"."""
        return {"best sentence": [_best_sentence(item) for item in heldout.rows]}

    def examples(self, items: Items, tokenizer: WordPieceTokenizer, reading: Reading) -> Sequences:
        """The windows of all questions that hold the whole answer or none of it."""
        read = read_questions(items, tokenizer, reading)
        kept, spans = [], []
        for place, (number, window) in enumerate(zip(read.questions, read.windows, strict=True)):
            span = span_in(items.rows[number], read.offsets[number], window)
            if span is not None:
                kept.append(place)
                spans.append(span)
        encoded = EncodedTexts(
            sequences=[read.encoded.sequences[place] for place in kept],
            segment_b_start=[read.encoded.segment_b_start[place] for place in kept],
            num_truncated=read.encoded.num_truncated,
        )
        return Sequences(encoded=encoded, labels=np.array(spans, np.int64).reshape(-1, 2))

    @torch.inference_mode()
    def answers(
        self, model: Model, tokenizer: WordPieceTokenizer, items: Items, reading: Reading
    ) -> Answers:
        """Of each question its best span and how much better "no answer" is than that."""
        read = read_questions(items, tokenizer, reading)
        # Of each window: the score of "no answer", of the best span, its first and last token.
        found = np.zeros((len(read.windows), 4), np.float64)
        for members, tokens in share(read.encoded, reading):
            rows = model(tokens).float().split(tokens.lengths)
            for member, logits in zip(members.tolist(), rows, strict=True):
                window = read.windows[member]
                if not window.num_tokens:
                    continue  # of a context the tokenizer leaves nothing
                score, first, last = best_span(inside(logits, window), _ANSWER_TOKENS)
                found[member] = (
                    float(logits[0].sum()), score,
                    window.first_token + first, window.first_token + last,
                )  # fmt: skip
        found = sum_over_ranks(found)
        values: list[dict[str, Any]] = []
        ends = np.searchsorted(read.questions, np.arange(len(items.rows)), side="right")
        for number, item in enumerate(items.rows):
            of_question = found[ends[number - 1] if number else 0 : ends[number]]
            best = of_question[of_question[:, 1].argmax()]
            offsets = read.offsets[number]
            begin, end = (offsets[int(best[2])][0], offsets[int(best[3])][1]) if offsets else (0, 0)
            end = with_marks(item["context"], end) if offsets else 0
            values.append(
                {
                    "text": item["context"][begin:end],
                    "begin": begin,
                    "null_lead": float(of_question[:, 0].min() - best[1]),
                }
            )
        return Answers(values, read.encoded.num_truncated)

    def scores(self, answers: Answers, items: Items) -> Mapping[str, WeightedScore]:
        """Exact match and F1 as SQuAD's evaluation computes them.

        Where some questions have no answer, none is given where "no answer" scores better than any
        span.
        """
        given = _scores(answers, items, threshold=0.0)
        return {
            "eval/exact_match": mean([score.exact for score in given]),
            "eval/f1": mean([score.f1 for score in given]),
        }

    def figures(self, answers: Answers, items: Items) -> dict[str, float]:
        """Likewise; where some have none, the best threshold for that and what it would reach."""
        figures = super().figures(answers, items)
        is_answerable = [bool(item["answers"]) for item in items.rows]
        if all(is_answerable):
            return figures
        spans = _scores(answers, items, threshold=math.inf)
        leads = [value["null_lead"] for value in answers.values]
        _, best_exact = best_threshold(leads, [score.exact for score in spans], is_answerable)
        threshold, best_f1 = best_threshold(leads, [score.f1 for score in spans], is_answerable)
        return {
            **figures,
            "eval/best_exact_match": best_exact,
            "eval/best_f1": best_f1,
            "eval/best_f1_threshold": threshold,
        }

    def report(self, answers: Answers, items: Items) -> dict[str, Any]:
        """Some questions that were answered wrongly, and what was answered."""
        wrong = [
            {"id": item["id"], "question": item["question"], "expected": item["answers"],
             "answered": value["text"]}
            for value, item in zip(answers.values, items.rows, strict=True)
            if not score_of(value["text"], item["answers"]).exact
        ]  # fmt: skip
        return {"wrong": wrong[:_WRONG]}


FAMILY = QuestionAnswering()


def _scores(answers: Answers, items: Items, threshold: float) -> list[SpanScore]:
    """Of each answer; where some questions have none, it is none with a lead above `threshold`."""
    if all(item["answers"] for item in items.rows):
        threshold = math.inf
    return [
        score_of("" if value["null_lead"] > threshold else value["text"], item["answers"])
        for value, item in zip(answers.values, items.rows, strict=True)
    ]


def _best_sentence(item: Item) -> dict[str, Any]:
    """The first of the sentences with the most words of the question, as an answer."""
    asked = _words(item["question"])
    begin, text = max(
        _sentences(item["context"]), key=lambda sentence: len(asked & _words(sentence[1]))
    )
    return {"text": text, "begin": begin, "null_lead": -1.0}


def _sentences(text: str) -> Iterator[tuple[int, str]]:
    """Where each sentence begins, and the sentence."""
    for match in _SENTENCE.finditer(text):
        yield match.start(), match.group().rstrip()


def _words(text: str) -> set[str]:
    return {word.strip(string.punctuation) for word in text.lower().split()}
