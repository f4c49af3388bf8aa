"""Progress of the workers: it reaches whoever watches, and its loss reaches nobody."""

import pytest
import ray

from pipelines.stage import Progress, ignore
from pipelines.train import messages as sending
from pipelines.train.messages import ProgressSender, messages_of_workers


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training run does not wait long for its last words; here a busy machine has the time."""
    monkeypatch.setattr(sending, "_LAST_WORDS_SECONDS", 240.0)


def progress(done: int, note: str = "") -> Progress:
    return Progress(stage="training", done=done, total=100, unit="steps", note=note)


def test_notes_all_arrive_and_the_last_value_too(local_ray):
    seen: list[Progress] = []
    with messages_of_workers(seen.append) as messages:
        sender = ProgressSender(messages)
        sender.send(progress(1, "resumed"))
        for done in range(2, 100):
            sender.send(progress(done))
        sender.send(progress(100, "done"))
        sender.close()
    assert [each.note for each in seen if each.note] == ["resumed", "done"]
    assert seen[-1].done == 100
    assert [each.done for each in seen] == sorted(each.done for each in seen)


def test_a_lost_display_ends_no_training(local_ray, caplog):
    with messages_of_workers(ignore) as messages:
        sender = ProgressSender(messages)
        ray.kill(messages)
        for done in range(1000):
            sender.send(progress(done, "a note"))
        sender.close()
    assert caplog.text.count("progress is not shown any more") == 1
