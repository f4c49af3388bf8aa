"""The database of an MLflow server, brought to the schema of the MLflow that is installed.

    MLFLOW_BACKEND_STORE_URI=postgresql://… python -m pipelines.tracking.migration

A server does it by itself where tables are missing. Where a newer MLflow changed others, it refuses
to start instead. `mlflow db upgrade` does the same as this, but takes the URI, which holds a
password, as an argument that everybody on the machine sees. There is no way back but a dump.
"""

import os
import sys

import pipelines.tracking.tracker  # noqa: F401  (MLflow's environment, before MLflow)
from pipelines.config.errors import UserError, first_line

URI_VARIABLE = "MLFLOW_BACKEND_STORE_URI"


def migrate(uri: str) -> None:
    """Make what is missing in the database and change what is old; an empty one gets everything.

    Raises UserError where it does not answer, where a newer MLflow made it, and where it cannot
    hold every character.
    """
    from alembic.util.exc import CommandError
    from mlflow.db import upgrade
    from sqlalchemy.exc import SQLAlchemyError

    try:
        _check_encodings(uri)
        upgrade.main([uri], standalone_mode=False)
    except (SQLAlchemyError, CommandError) as error:
        raise UserError(
            f"the database of {URI_VARIABLE} cannot be used: {first_line(error)}; correct the "
            "variable, or install the MLflow that the database is of, if it is a newer one"
        ) from error


def _check_encodings(uri: str) -> None:
    """PostgreSQL makes a database of SQL_ASCII where it was set up without a locale.

    It would do until the first description with another character: at the end of a training run.
    """
    from sqlalchemy import create_engine, text

    engine = create_engine(uri)
    if engine.dialect.name != "postgresql":
        return
    with engine.connect() as connection:
        found = connection.execute(text("SHOW server_encoding")).scalar_one()
    engine.dispose()
    if found != "UTF8":
        raise UserError(
            f"the database of {URI_VARIABLE} is in {found} instead of UTF8; make it again with "
            "createdb --encoding=UTF8 --template=template0"
        )


def main() -> None:
    """Migrate the database that the environment names."""
    try:
        uri = os.environ.get(URI_VARIABLE, "")
        if not uri:
            raise UserError(f"{URI_VARIABLE} names no database; set it")
        migrate(uri)
    except UserError as error:
        sys.exit(str(error))
    sys.stdout.write("the database has the schema of this MLflow\n")


if __name__ == "__main__":
    main()
