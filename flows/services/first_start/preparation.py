"""What must be there before the servers' first start: the buckets of the store and of MLflow.

    python -m flows.services.first_start.preparation

makes those that the environment names. Doing it again does no harm.
"""

import os
import sys

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
    """Make the buckets; a line for each that was missing."""
    try:
        for name in make_buckets():
            sys.stdout.write(f"made the bucket {name}\n")
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
