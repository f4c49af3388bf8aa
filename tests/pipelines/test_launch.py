"""Waiting for Ray's fit(): an exit does not wait for it."""

import subprocess
import sys


def test_an_interrupted_wait_exits_though_the_fit_never_returns():
    program = """
import os, signal, threading, time
from pipelines.train import launch

class Wish:
    class stop:
        remote = staticmethod(lambda: print("asked to stop", flush=True))

class Trainer:
    def fit(self):
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        while True:
            time.sleep(0.1)

launch.PATIENCE_SECONDS = 1.0
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    launch._fit(Trainer(), Wish())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200
    )
    assert (result.returncode, result.stdout) == (0, "asked to stop\ninterrupted\n"), result.stderr
