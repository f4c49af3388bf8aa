"""Requests over HTTP: what they ask, which are answered together, and what each gets."""

import asyncio
import json
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from queue import Full
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from bert_core.inference.tables import answer_table, question_of
from bert_core.model.catalogue import MODELS
from flows.cli.app import MISTAKE, run
from flows.cli.predict import bound_socket
from pipelines.errors import UserError
from pipelines.predict.server import (
    BATCH_CHARACTERS,
    MOST_ROWS,
    Batcher,
    application,
    asked_of_body,
    num_characters,
)
from pipelines.predict.tables import Table
from pipelines.registry.package import opened
from tests.pipelines.registry.test_serving import untrained

CLASSES = question_of(MODELS["sequence_classification"])
TAGS = question_of(MODELS["token_classification"])


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
        (body(dataframe_records=[]), "at least one row"),
        (body(dataframe_split={"columns": ["text"], "data": [["a", "b"]]}), "at least one row"),
        (body(instances=["a"]), "dataframe_records"),
        (b'{"dataframe_records": [{"text": "a", "text": "b"}]}', "'text' comes twice in an object"),
        (
            body(dataframe_split={"columns": ["text", "text"], "data": [["a", "b"]]}),
            "columns names 'text' twice; give each column its own name",
        ),
        (body(dataframe_records=[{"text": "a"}, {"text": 5}]), "row 1: text must be a string"),
        (body(dataframe_records=[{"text": ["a"]}]), "row 0: text must be a string"),
    ],
)
def test_what_is_no_table_is_refused_in_one_sentence(given: bytes, said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        asked_of_body(given, CLASSES)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def lengths(table: Table) -> Table:
    if "bad" in table["text"]:
        raise ValueError("bad cannot be answered")
    column = table.get("second_text", table["text"])
    return {"length": [len(text or "") for text in column]}


@contextmanager
def running(batcher: Batcher) -> Iterator[None]:
    """A thread that answers, until the block ends."""
    thread = threading.Thread(target=batcher.run)
    thread.start()
    try:
        yield
    finally:
        batcher.close()
        thread.join(30)


def test_who_waits_together_is_answered_together_and_too_many_are_refused() -> None:
    calls = []

    def answer(table: Table) -> Table:
        calls.append([len(text) for text in table["text"]])
        return lengths(table)

    batcher = Batcher(answer, most_waiting=6)
    tables: list[Table] = [{"text": ["bb"]}, {"text": ["ccc", "i"]}]
    tables.append({"text": ["dddd"], "second_text": ["e"]})  # another question
    tables += [{"text": [text]} for text in ("f" * BATCH_CHARACTERS, "gg", "h")]
    asked = [batcher.ask(table) for table in tables]
    with pytest.raises(Full):
        batcher.ask({"text": ["too many"]})
    with running(batcher):
        answered = [each.result(30)["length"] for each in asked]
    assert answered == [[2], [3, 1], [1], [BATCH_CHARACTERS], [2], [1]]
    # No neighbour fits beside the long text.
    assert calls == [[2, 3, 1], [4], [BATCH_CHARACTERS], [2, 1]]


def test_a_fault_reaches_everyone_of_a_batch_and_the_next_one_is_answered() -> None:
    faults = iter([MemoryError("no room")] * 3)  # of both together, then of each alone

    def answer(table: Table) -> Table:
        for fault in faults:
            raise fault
        return lengths(table)

    batcher = Batcher(answer, most_waiting=8)
    lost = [batcher.ask({"text": ["a"]}) for _ in range(2)]
    with running(batcher):
        assert [type(each.exception(30)) for each in lost] == [MemoryError, MemoryError]
        good, bad = (batcher.ask({"text": [text]}) for text in ("a", "bad"))
        assert good.result(30) == {"length": [1]}
        assert str(bad.exception(30)) == "bad cannot be answered"


def test_an_answer_is_sent_at_once() -> None:
    """Asyncio turns Nagle's algorithm off for sockets of TCP alone: else an answer waits 40 ms."""
    with bound_socket("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()):
        accepted, _ = bound.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The application of a small classifier, without a network."""
    artifact = untrained(tmp_path_factory.mktemp("served"), "classification")
    loaded = opened(artifact.local_folder())
    batcher = Batcher(partial(answer_table, *loaded), most_waiting=4)
    with running(batcher):
        yield TestClient(application(loaded[0], "it", batcher, "float32"))


def test_a_request_of_too_many_rows_or_bytes_is_refused(client: TestClient) -> None:
    rows = [{"text": "a"}] * (MOST_ROWS + 1)
    answer = client.post("/invocations", json={"dataframe_records": rows})
    assert answer.status_code == 413
    assert "at most 1,024 rows, found 1,025; divide it" in answer.json()["message"]
    assert len(client.post("/invocations", json={"dataframe_records": rows[1:]}).json()[
        "predictions"]) == MOST_ROWS  # fmt: skip
    split = {"columns": ["text"], "data": [["a"]] * (MOST_ROWS + 1)}
    assert client.post("/invocations", json={"dataframe_split": split}).status_code == 413
    answer = client.post("/invocations", json={"dataframe_records": [{"text": "a" * 2_000_000}]})
    assert answer.status_code == 413
    assert "at most 1 MiB" in answer.json()["message"]


def test_rows_are_counted_before_anything_is_made_of_their_columns() -> None:
    """As many columns as rows are the square of them in cells: of 1 MiB 65 GB."""
    rows = [{str(number): 0, "text": "a"} for number in range(4 * MOST_ROWS)]
    tracemalloc.start()
    try:
        with pytest.raises(HTTPException, match=f"found {len(rows):,}"):
            asked_of_body(body(dataframe_records=rows), CLASSES)
        asked = asked_of_body(body(dataframe_records=rows[:MOST_ROWS]), CLASSES)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert asked == {"text": ["a"] * MOST_ROWS}
    assert peak < 8 << 20


def test_a_long_text_with_many_choices_is_refused() -> None:
    """Its tokens are read once for each choice, though they are sent once."""
    question = question_of(MODELS["multiple_choice"])
    rows = [{"text": "a" * 100_000, "choices": ["b"] * number} for number in (41, 42)]
    assert num_characters(asked_of_body(body(dataframe_records=rows[:1]), question)) == 4_100_041
    with pytest.raises(HTTPException, match=r"at most 4,194,304 characters, found 4,200,042; sho"):
        asked_of_body(body(dataframe_records=rows[1:]), question)
    # A list beside a text is not always choices.
    tagged = {"text": ["a" * 2000], "tags": [["b"] * 3000]}
    assert num_characters(tagged) == 5000
    # A text that words replace is not read at all.
    words = [{"text": "a" * 100_000, "words": ["b"] * 42}, {"text": "c", "words": None}]
    asked = asked_of_body(body(dataframe_records=words), TAGS)
    assert asked == {"text": [None, "c"], "words": [["b"] * 42, None]}


@pytest.mark.parametrize("kind", ["text/csv", "application/x-www-form-urlencoded", ""])
def test_a_content_type_that_is_not_json_is_refused(client: TestClient, kind: str) -> None:
    given = body(dataframe_records=[{"text": "a"}])
    answer = client.post("/invocations", content=given, headers={"Content-Type": kind})
    assert answer.status_code == 415
    assert answer.json()["message"].startswith("the content type must be application/json")
    kind = "application/json; charset=utf-8"
    good = client.post("/invocations", content=given, headers={"Content-Type": kind})
    assert good.status_code == 200


def test_a_client_that_goes_away_is_no_error_of_ours(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    scope = {
        "type": "http", "method": "POST", "path": "/invocations", "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    sent = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message.get("status"))

    asyncio.run(client.app(scope, receive, send))
    assert sent[0] == 499
    assert not caplog.records


def test_a_port_in_use_is_told_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with bound_socket("127.0.0.1", 0) as first:
        port = str(first.getsockname()[1])
        assert run(["serve", "no-such-model", "--port", port]) == MISTAKE
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
