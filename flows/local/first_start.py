"""The passwords of a whole composition or cluster, made on its first start; safe to repeat.

    python -m flows.local.first_start /credentials

Each reader has its own folder below that one, a volume of its own in the composition, and cannot
see the other passwords: docs/deploying.md
"""

import json
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

USER = "bertsmith"
# Readable by all, because PostgreSQL and the S3 server run as users of their own images. Only
# the container that mounts a volume sees its files; outside of volumes the folder is its owner's.
_MODE, _FOLDER_MODE = 0o444, 0o700
_MARK = "servers/complete"  # written last


def make_credentials(folder: Path) -> bool:
    """Write every password below `folder`, unless that was done before; returns whether it was new.

    A start that was interrupted used none: its files are overwritten.
    """
    if (folder / _MARK).exists():
        return False
    folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
    for name, text in _contents().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(_MODE)
    (folder / _MARK).touch()
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
    store = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
    clients = {
        "PREFECT_API_AUTH_STRING": f"{USER}:{people}",
        "MLFLOW_TRACKING_USERNAME": USER,
        "MLFLOW_TRACKING_PASSWORD": people,
        **store,
        "RAY_AUTH_TOKEN": ray,
    }
    servers = {
        "PREFECT_SERVER_API_AUTH_STRING": f"{USER}:{people}",
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"postgresql+asyncpg://{server}/prefect",
        "BERTSMITH_MLFLOW_LOGIN": f"http://{USER}:{people}@mlflow:5000",
        "MLFLOW_BACKEND_STORE_URI": f"postgresql://{server}/mlflow",
        **store,
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


if __name__ == "__main__":
    sys.stdout.write(
        "passwords made\n" if make_credentials(Path(sys.argv[1])) else "passwords are there\n"
    )
