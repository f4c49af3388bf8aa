"""An S3 server on the loopback, for tests that need a store without a disk."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen

import boto3
import pytest
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

BUCKET = "bertsmith"


@contextmanager
def s3_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Environment of processes that use the server, set here too; an empty bucket is there."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for every request
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # Its contents are the process's, and outlive the server of an earlier test.
    urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    # A client of an earlier test would go on asking that test's server.
    S3FileSystem.clear_instance_cache()
    yield environment
    S3FileSystem.clear_instance_cache()
    server.stop()


def keys_below(prefix: str) -> list[str]:
    """Names of all objects below `prefix`, sorted."""
    pages = boto3.client("s3").get_paginator("list_objects_v2")
    return sorted(
        found["Key"]
        for page in pages.paginate(Bucket=BUCKET, Prefix=prefix)
        for found in page.get("Contents", [])
    )
