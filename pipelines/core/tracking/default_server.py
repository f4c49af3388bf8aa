"""The server that MLflow asks where nobody names one, without a trace of it in the environment."""

import os
import threading

import mlflow

_ADDRESSES = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
_one_at_a_time = threading.Lock()


def make_default(address: str) -> None:
    """Make `address` this process's default server for runs and registered models.

    MLflow also writes it into the environment, for subprocesses. There the next run of this process
    would take it for an address that somebody named, and use it for another home: what the
    environment said before stays.
    """
    with _one_at_a_time:
        named = {name: os.environ.get(name) for name in _ADDRESSES}
        try:
            mlflow.set_tracking_uri(address)
            mlflow.set_registry_uri(address)
        finally:
            for name, before in named.items():
                if before is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = before
