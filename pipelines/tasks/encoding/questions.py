"""Questions with their contexts, in windows, and where in a window the answer stands."""

from typing import NamedTuple

from bert_core.inference.texts import EncodedTexts
from bert_core.inference.windows import Window, question_windows
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.tasks import Item, Items, Reading

_QUESTION_TOKENS = 64  # or half of what is read, where that is less


class ReadQuestions(NamedTuple):
    """The windows of all questions, in the order of the questions."""

    encoded: EncodedTexts
    windows: list[Window]
    questions: list[int]  # of each window, ascending
    offsets: list[list[tuple[int, int]]]  # of each question: the characters of its context's tokens


def read_questions(items: Items, tokenizer: WordPieceTokenizer, reading: Reading) -> ReadQuestions:
    """[CLS] question [SEP] window [SEP] for every window of every question's context.

    A question of more than 64 pieces loses its end, as published, and is counted.
    """
    longest = min(_QUESTION_TOKENS, max(1, reading.max_tokens // 2 - 3))
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
