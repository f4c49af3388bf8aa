"""What a person sees of a flow run while it runs."""

import logging

import pytest
from prefect import flow

from flows.progress import ProgressReporter, progress_on_terminal

store = logging.getLogger("pipelines.store.attempts")


@flow
def _warned() -> list[str]:
    with ProgressReporter("watched") as progress:
        logging.getLogger("pipelines.store.attempts").warning("another builds %s: waiting", "it")
        logging.getLogger("pipelines.store.attempts").info("nothing to see")
        for _ in range(2):
            logging.getLogger("pipelines.tracking.tracker").warning(
                "the tracker %s does not answer", "http://me:secret123@127.0.0.1"
            )
        logging.getLogger("somebody.else").warning("nothing to see")
        progress.note("a note")
    store.warning("too late")
    return progress.notes


def test_what_our_code_warns_of_is_on_the_terminal_and_in_the_report(
    prefect_api: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_on_terminal():
        store_said, tracker_said, note = _warned()
    assert (store_said, note) == ("another builds it: waiting", "a note")
    assert "secret123" not in tracker_said
    said = capsys.readouterr().err
    assert said.count(f"{tracker_said}\n") == 1  # however often it is found out
    assert said.count("another builds it: waiting\n") == 1
    assert said.count("a note\n") == 1
    assert "too late" not in said
    assert "nothing to see" not in said
