"""The passwords of a whole composition, made at random where there are none yet.

    python -m flows.services.first_start.credentials /credentials

Each reader has a folder of its own below that one, which is a volume of its own in the
composition: who gets one password does not see the others. docs/deploying.md
"""

import argparse
import json
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from pipelines.core.errors import UserError

USER = "bertsmith"
# Not for the owner alone: PostgreSQL, Prometheus and Grafana run as users of their own images.
# Nobody but the container that a volume is given to sees what lies on it; a folder that is made
# here, as in a checkout, lets nobody but its owner in.
_MODE, _FOLDER_MODE = 0o444, 0o700
_MARK = "servers/complete"  # written last


def make_credentials(folder: Path) -> bool:
    """Write every password below `folder`; whether that was needed.

    Raises UserError where they were made and some are no longer there.
    """
    made, mark = _contents(), folder / _MARK
    missing = [name for name in made if not (folder / name).is_file()]
    if mark.exists():
        if missing:
            raise UserError(
                f"the passwords that were made below {folder} must all be there, found no "
                f"{', '.join(missing)}; put the missing volume back, or remove the volumes of all "
                "passwords and of what they open"
            )
        return False
    folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
    for name, text in made.items():  # a start that was cut short opened nothing: written over
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(_MODE)
    mark.touch()
    return True


def _contents() -> Mapping[str, str]:
    """What lies where, with new passwords."""
    people, database, grafana, ray, metrics = (secrets.token_urlsafe(24) for _ in range(5))
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
        "BERTSMITH_METRICS_TOKEN": metrics,
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
        "prometheus/password": people,
        "prometheus/ray_token": ray,
        "prometheus/metrics_token": metrics,
        "grafana/password": grafana,
    }


def _lines(variables: Mapping[str, str]) -> str:
    """As a shell reads them, docker and kubectl too: no value has a character that needs quotes."""
    return "".join(f"{name}={value}\n" for name, value in variables.items())


def main() -> None:
    """Make what is missing, and say so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    try:
        is_new = make_credentials(parser.parse_args().folder)
    except UserError as error:
        sys.exit(str(error))
    sys.stdout.write("passwords made\n" if is_new else "passwords are there\n")


if __name__ == "__main__":
    main()
