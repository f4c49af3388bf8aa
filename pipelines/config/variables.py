"""Bertsmith's own environment variables: every one, and what it means.

Those of other programs (PREFECT_…, MLFLOW_…, RAY_…, AWS_…) keep their own names and meanings.
"""

from collections.abc import Mapping
from typing import Final

VARIABLES: Final[Mapping[str, str]] = {
    "BERTSMITH_HOME": "folder of a local set-up: store, registry, logs; default .bertsmith",
    "BERTSMITH_STORE": "artifact store, a folder or s3://…; default the store of the home",
    "BERTSMITH_CACHE": "folder for copies of remote artifacts; default ~/.cache/bertsmith",
    "BERTSMITH_CACHE_BYTES": "how large the cache may grow; default 50 GiB",
    "BERTSMITH_WAIT_FOR_NODES_SECONDS": "how long a training run waits for nodes; default 0",
    "BERTSMITH_RUNTIME": "Prefect block that a worker's runs take their store and tracker from",
    "BERTSMITH_NOTIFY_URL": "where the platform's automations write",
    "BERTSMITH_METRICS_TOKEN": "bearer token that Prometheus has to bring",
    "BERTSMITH_MLFLOW_LOGIN": "http://user:password@host:port of the MLflow server that we serve",
    "BERTSMITH_SERVICE": "internal: which processes `bertsmith up` started",
    # Of the image, its composition and its manifests (infra/).
    "BERTSMITH_CREDENTIALS": "file of NAME=value lines that the image reads first",
    "BERTSMITH_RAY_HEAD": "host:port of a cluster that the image joins beside its command",
    "BERTSMITH_IMAGE": "the image of our roles",
    "BERTSMITH_LISTEN": "address that the composition's pages listen on; default 127.0.0.1",
    "BERTSMITH_MLFLOW_HOSTS": "what containers and browsers call the MLflow server",
}
