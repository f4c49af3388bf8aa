"""Requests over HTTP: what they ask, which are answered together, and what each gets."""

import asyncio
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bert_core.inference.tables import question_of_class
from bert_core.model.catalogue import MODELS
from flows.cli.commands.services import bound_socket
from pipelines.config.errors import UserError
from pipelines.inference.batching import (
    BATCH_CHARACTERS,
    Batcher,
    FullError,
    answered_together,
    asked_of_body,
    divided,
    merged,
    num_characters,
    num_together,
)
from pipelines.inference.tables import Table

CLASSES = question_of_class(MODELS["sequence_classification"])
TAGS = question_of_class(MODELS["token_classification"])
CHOICES = question_of_class(MODELS["multiple_choice"])


def body(**given: Any) -> bytes:
    return json.dumps(given).encode()


def test_both_formats_of_tables_ask_the_same() -> None:
    records = body(dataframe_records=[{"text": "a", "other": 1}, {"text": "b"}])
    split = body(dataframe_split={"columns": ["other", "text"], "data": [[1, "a"], [None, "b"]]})
    asked = [asked_of_body(each, CLASSES) for each in (records, split)]
    assert asked == [{"text": ["a", "b"]}] * 2


def test_an_optional_column_counts_where_a_row_has_it() -> None:
    rows = [{"text": "a", "second_text": None}, {"text": "b", "second_text": "c"}]
    assert asked_of_body(body(dataframe_records=rows[:1]), CLASSES) == {"text": ["a"]}
    asked = asked_of_body(body(dataframe_records=rows), CLASSES)
    assert asked == {"text": ["a", "b"], "second_text": [None, "c"]}
    words = asked_of_body(body(dataframe_records=[{"words": ["a", "b"]}]), TAGS)
    assert words == {"words": [["a", "b"]]}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"{", "must be JSON"),
        (b"\xff", "must be JSON"),
        (b"[" * 100_000, "must be JSON"),
        (b"[1]", "at least one row"),
        (body(dataframe_records=[]), "at least one row"),
        (body(dataframe_records=["a"]), "at least one row"),
        (body(dataframe_split={"columns": ["text"], "data": [["a", "b"]]}), "at least one row"),
        (body(instances=["a"]), "dataframe_records"),
        (body(dataframe_records=[{"text": "a"}, {"text": 5}]), "row 1: text must be a string"),
        (body(dataframe_records=[{"text": ["a"]}]), "row 0: text must be a string"),
    ],
)
def test_what_is_no_table_is_refused_in_one_sentence(given: bytes, said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        asked_of_body(given, CLASSES)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_choices_are_lists_of_strings() -> None:
    row = {"text": "a", "choices": "b"}
    with pytest.raises(UserError, match="choices must be a list of strings"):
        asked_of_body(body(dataframe_records=[row]), CHOICES)


def test_what_is_merged_is_divided_again() -> None:
    tables: list[Table] = [{"text": ["a"]}, {"text": ["b", "c"]}, {"text": ["d"]}]
    assert merged(tables) == {"text": ["a", "b", "c", "d"]}
    assert divided(merged(tables), [1, 2, 1]) == tables
    assert num_characters({"text": ["ab", None], "choices": [["c", "de"], ["f"]]}) == 6


def test_a_batch_takes_the_first_that_fit_and_at_least_one() -> None:
    assert num_together([4, 4, 4], 8) == 2
    assert num_together([9, 1], 8) == 1
    assert num_together([1, 9, 1], 8) == 1  # nobody is passed over
    assert num_together([], 8) == 0


def lengths(table: Table) -> Table:
    if "bad" in table["text"]:
        raise ValueError("bad cannot be answered")
    column = table.get("second_text", table["text"])
    return {"length": [len(text or "") for text in column]}


def test_tables_with_the_same_columns_are_one_call() -> None:
    calls: list[Table] = []

    def answer(table: Table) -> Table:
        calls.append(table)
        return lengths(table)

    asked: list[Table] = [
        {"text": ["a"]}, {"text": ["x"], "second_text": ["four"]}, {"text": ["bb", "ccc"]}
    ]  # fmt: skip
    assert answered_together(answer, asked) == [
        {"length": [1]}, {"length": [4]}, {"length": [2, 3]}
    ]  # fmt: skip
    assert len(calls) == 2


def test_a_table_that_cannot_be_answered_spoils_no_other() -> None:
    good, bad, last = answered_together(lengths, [{"text": [text]} for text in ("a", "bad", "cc")])
    assert (good, last) == ({"length": [1]}, {"length": [2]})
    assert str(bad) == "bad cannot be answered"


def test_who_waits_together_is_answered_together_and_too_many_are_refused() -> None:
    goes_on, sizes = threading.Event(), []

    def answer(table: Table) -> Table:
        sizes.append(len(table["text"]))
        assert goes_on.wait(30)
        return lengths(table)

    async def ask() -> list[Any]:
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(answer, thread, most_waiting=3)
            first = asyncio.create_task(batcher.ask({"text": ["a"]}))
            while not sizes:
                await asyncio.sleep(0.01)
            texts = ["bb", "c" * BATCH_CHARACTERS, "dddd", "one too many"]
            others = [asyncio.create_task(batcher.ask({"text": [text]})) for text in texts]
            await asyncio.sleep(0)
            assert batcher.num_waiting == 3
            goes_on.set()
            return await asyncio.gather(first, *others, return_exceptions=True)

    *answered, refused = asyncio.run(ask())
    assert [each["length"] for each in answered] == [[1], [2], [BATCH_CHARACTERS], [4]]
    assert isinstance(refused, FullError)
    assert sizes == [1, 1, 1, 1]  # neither neighbour fits beside the long text


def test_a_fault_reaches_everyone_of_a_batch_and_the_next_one_is_answered() -> None:
    async def ask() -> list[Any]:
        faults = iter([MemoryError("no room")] * 3)  # of both together, then of each alone

        def answer(table: Table) -> Table:
            for fault in faults:
                raise fault
            return lengths(table)

        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(answer, thread, most_waiting=8)
            both = [batcher.ask({"text": ["a"]}) for _ in range(2)]
            lost = await asyncio.gather(*both, return_exceptions=True)
            return [*lost, await batcher.ask({"text": ["a"]})]

    *lost, answered = asyncio.run(ask())
    assert [type(each) for each in lost] == [MemoryError, MemoryError]
    assert answered == {"length": [1]}


def test_an_answer_is_sent_at_once() -> None:
    """Asyncio turns Nagle's algorithm off for sockets of TCP alone: else an answer waits 40 ms."""
    with bound_socket("127.0.0.1", 0) as bound:
        bound.listen()
        with socket.create_connection(bound.getsockname()):
            accepted, _ = bound.accept()
            with accepted:
                assert accepted.proto == socket.IPPROTO_TCP


def test_half_an_emoji_is_a_replacement_character() -> None:
    asked = asked_of_body(b'{"dataframe_records": [{"text": "a \\ud83d b"}]}', CLASSES)
    assert asked == {"text": ["a \ufffd b"]}


def test_one_that_fails_in_an_unknown_way_fails_alone() -> None:
    def answer(table: Table) -> Table:
        if "bad" in table["text"]:
            raise KeyError("bad")
        return {"label": table["text"]}

    good, bad, other = answered_together(answer, [{"text": [t]} for t in ("a", "bad", "c")])
    assert (good, other) == ({"label": ["a"]}, {"label": ["c"]})
    assert isinstance(bad, KeyError)
