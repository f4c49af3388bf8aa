"""A process is told apart from others with the same id."""

import subprocess
import sys
import time

import psutil
import pytest

from pipelines.config.processes import ProcessIdentity


def test_the_process_itself_is_alive_and_stays_the_same():
    here = ProcessIdentity.current()
    assert here.is_alive()
    assert here == ProcessIdentity.model_validate_json(here.model_dump_json())


def test_another_process_with_the_same_id_is_not_meant():
    here = ProcessIdentity.current()
    assert here.model_copy(update={"started": here.started + 1}).is_alive() is False


def test_of_another_machine_nothing_is_known():
    assert ProcessIdentity.current().model_copy(update={"machine": "elsewhere"}).is_alive() is None


@pytest.mark.skipif(not psutil.LINUX, reason="zombies as Linux has them")
def test_a_process_that_ended_is_dead_even_before_it_was_waited_for():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    identity = ProcessIdentity.of(ended.pid)
    while psutil.Process(ended.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert identity.is_alive() is False
    ended.wait()
    assert identity.is_alive() is False
    with pytest.raises(psutil.NoSuchProcess):
        ProcessIdentity.of(ended.pid)
