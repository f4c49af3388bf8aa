"""Which process is meant: the same id, another process, another boot, another machine."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from flows.services.processes.identity import ProcessIdentity


def test_a_process_is_itself_until_it_ends() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = ProcessIdentity.of(process.pid)
    assert identity.is_running()
    assert not identity.is_known_dead()
    process.communicate()
    assert not identity.is_running()
    assert identity.is_known_dead()


def test_a_zombie_runs_no_more() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = ProcessIdentity.of(process.pid)
    process.kill()
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)  # it ended, and nobody has waited for it
    assert not identity.is_running()
    process.communicate()


def test_a_stranger_with_the_same_id_is_someone_else() -> None:
    identity = ProcessIdentity.of(os.getpid())
    stranger = replace(identity, started="another start")
    assert not stranger.is_running()
    assert stranger.is_known_dead()


def test_of_another_machine_nothing_is_known() -> None:
    elsewhere = replace(ProcessIdentity.of(os.getpid()), host="elsewhere.example")
    assert not elsewhere.is_running()
    assert not elsewhere.is_known_dead()


@pytest.mark.skipif(not psutil.LINUX, reason="elsewhere a process is told by the clock's time")
def test_a_clock_that_is_set_changes_nobodys_identity() -> None:
    """The wall clock enters nowhere: ticks since the boot, and which boot."""
    identity = ProcessIdentity.of(os.getpid())
    boot, ticks = identity.started.split()
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    seconds_after_boot = int(ticks) / os.sysconf("SC_CLK_TCK")
    assert 0 < seconds_after_boot <= float(Path("/proc/uptime").read_text().split()[0])
