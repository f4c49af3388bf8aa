"""The passwords of a whole composition or cluster, made on its first start; safe to repeat.

    python -m flows.services.first_start /credentials

Each reader has its own folder below that one, a volume of its own in the composition, and cannot
see the other passwords: docs/deploying.md
"""

import argparse
import json
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from pipelines.errors import UserError

USER = "bertsmith"
# Readable by all, because PostgreSQL and the S3 server run as users of their own images. Only
# the container that mounts a volume sees its files; outside of volumes the folder is its owner's.
_MODE, _FOLDER_MODE = 0o444, 0o700
_MARK = "servers/complete"  # written last


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


def main() -> None:
    """Create the passwords if they are missing, and say so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    try:
        is_new = make_credentials(parser.parse_args().folder)
    except UserError as error:
        sys.exit(str(error))
    sys.stdout.write("passwords made\n" if is_new else "passwords are there\n")


if __name__ == "__main__":
    main()
