"""Connecting to Ray, where it is not where it should be."""

import os
import socket
import subprocess
import sys


def test_an_address_where_nobody_answers_is_named_at_once():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening: nobody else takes the port
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        result = subprocess.run(
            [sys.executable, "-c", "from pipelines.cluster import connect; connect()"],
            env=os.environ | {"RAY_ADDRESS": address}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert result.returncode == 1
    assert f"RAY_ADDRESS must name a running Ray cluster, found no answer at {address}" in (
        result.stderr
    )
