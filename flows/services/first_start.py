"""Preparation for the first start of a whole composition. It is safe to repeat.

    python -m flows.services.first_start credentials /credentials

creates random passwords unless they exist. Each reader has its own folder below that one, a volume
of its own in the composition, and cannot see the other passwords.

    python -m flows.services.first_start buckets

creates the buckets of the store and of MLflow that the environment names. docs/deploying.md
"""

import argparse
import json
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from pipelines.artifacts.access import open_store, store_errors_explained
from pipelines.config.errors import UserError

USER = "bertsmith"
# Readable by all, because PostgreSQL and the S3 server run as users of their own images. Only
# the container that mounts a volume sees its files; outside of volumes the folder is its owner's.
_MODE, _FOLDER_MODE = 0o444, 0o700
_MARK = "servers/complete"  # written last
_URLS, _PROTOCOL = ("BERTSMITH_STORE", "MLFLOW_ARTIFACTS_DESTINATION"), "s3://"


def make_credentials(folder: Path) -> bool:
    """Write every password below `folder`, unless that was done before; returns whether it was new.

    Raises UserError if they were created before and some are missing now.
    """
    made, mark = _contents(), folder / _MARK
    missing = [name for name in made if not (folder / name).is_file()]
    if mark.exists():
        if missing:
            raise UserError(
                f"of the passwords that were made below {folder}, {', '.join(missing)} is missing; "
                "put the missing volume back, or remove the volumes of all passwords and of what "
                "they open"
            )
        return False
    folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
    for name, text in made.items():  # an interrupted start used none: overwrite
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(_MODE)
    mark.touch()
    return True


def _contents() -> Mapping[str, str]:
    """Files and their contents, with new passwords."""
    people, database, ray = (secrets.token_urlsafe(24) for _ in range(3))
    key, secret = secrets.token_hex(10), secrets.token_urlsafe(30)
    server = f"{USER}:{database}@postgres:5432"
    identity = {
        "name": USER,
        "credentials": [{"accessKey": key, "secretKey": secret}],
        "actions": ["Admin"],
    }
    clients = {
        "PREFECT_API_AUTH_STRING": f"{USER}:{people}",
        "MLFLOW_TRACKING_USERNAME": USER,
        "MLFLOW_TRACKING_PASSWORD": people,
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "RAY_AUTH_TOKEN": ray,
    }
    servers = {
        "PREFECT_SERVER_API_AUTH_STRING": f"{USER}:{people}",
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"postgresql+asyncpg://{server}/prefect",
        "BERTSMITH_MLFLOW_LOGIN": f"http://{USER}:{people}@mlflow:5000",
        "MLFLOW_BACKEND_STORE_URI": f"postgresql://{server}/mlflow",
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
    }
    return {
        "clients/environment": _lines(clients),
        "servers/environment": _lines(servers),
        "postgres/password": database,
        "s3/identities.json": json.dumps({"identities": [identity]}, indent=2) + "\n",
    }


def _lines(variables: Mapping[str, str]) -> str:
    """As shells, docker and kubectl read them: no value has a character that needs quotes."""
    return "".join(f"{name}={value}\n" for name, value in variables.items())


def make_buckets() -> list[str]:
    """Create the buckets that the environment names for the store and for MLflow's files.

    Returns those that were missing. Raises UserError if the store does not answer.
    """
    urls = [os.environ.get(name, "") for name in _URLS]
    names = {
        url.removeprefix(_PROTOCOL).partition("/")[0] for url in urls if url.startswith(_PROTOCOL)
    }
    made = []
    for name in sorted(names):
        filesystem, bucket = open_store(f"{_PROTOCOL}{name}", is_patient=True)
        with store_errors_explained(f"{_PROTOCOL}{name}"):
            if not filesystem.exists(bucket):
                filesystem.mkdir(bucket)
                made.append(name)
    return made


def main() -> None:
    """Create what is missing, and report it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("credentials", "buckets"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path("credentials"))
    options = parser.parse_args()
    try:
        if options.what == "buckets":
            sentences = [f"made the bucket {name}" for name in make_buckets()]
        else:
            is_new = make_credentials(options.folder)
            sentences = ["passwords made" if is_new else "passwords are there"]
    except UserError as error:
        sys.exit(str(error))
    for line in sentences:
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
