"""What must be there before the first run: the bucket of the store, the flows on Prefect's server.

    python -m flows.services.first_start.preparation [--deploy-to WORK_POOL]

makes the buckets that the environment names, or deploys all flows to a work pool. Doing it again
does no harm: what a person changed on a deployment's page stays (flows/services/deployments.py).
"""

import argparse
import os
import sys

from flows.services.deployments import deploy
from pipelines.artifacts.access import explained, open_store
from pipelines.core.errors import UserError

_URLS = ("BERTSMITH_STORE", "MLFLOW_ARTIFACTS_DESTINATION")
_PROTOCOL = "s3://"


def make_buckets() -> list[str]:
    """Make the buckets that the environment names for the store and for MLflow's files.

    Returns those that were missing. Raises UserError where the store does not answer.
    """
    urls = [url for name in _URLS if (url := os.environ.get(name, "")).startswith(_PROTOCOL)]
    names = {url.removeprefix(_PROTOCOL).partition("/")[0] for url in urls}
    made = []
    for name in sorted(names):
        filesystem, bucket = open_store(f"{_PROTOCOL}{name}", is_patient=True)
        with explained(f"{_PROTOCOL}{name}"):
            if not filesystem.exists(bucket):
                filesystem.mkdir(bucket)
                made.append(name)
    return made


def main() -> None:
    """Make the buckets, or deploy; a line for each thing a person should know."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deploy-to", metavar="WORK_POOL", default="")
    pool = parser.parse_args().deploy_to
    try:
        notes = deploy(pool) if pool else [f"made the bucket {name}" for name in make_buckets()]
    except UserError as error:
        sys.exit(str(error))
    for note in notes:
        sys.stdout.write(f"{note}\n")


if __name__ == "__main__":
    main()
