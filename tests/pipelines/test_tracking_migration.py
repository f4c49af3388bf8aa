"""An MLflow database that an older MLflow left, an empty one, and one of a newer MLflow."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from alembic import command
from alembic.script import ScriptDirectory
from mlflow.exceptions import MlflowException
from mlflow.store.db import utils
from mlflow.store.tracking.dbmodels.initial_models import Base

from benchmarks.stack.postgres import Postgres, binaries
from pipelines.config.errors import UserError
from pipelines.tracking import migration


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def left_by_the_version_before(uri: str) -> None:
    """Make the tables as MLflow had them one revision ago."""
    engine = sqlalchemy.create_engine(uri)
    Base.metadata.create_all(engine)
    config = utils._get_alembic_config(uri)
    before = ScriptDirectory.from_config(config).get_revision("head").down_revision
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, str(before))
    engine.dispose()


def test_an_older_database_and_an_empty_one_get_the_schema_of_this_mlflow(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left_by_the_version_before(uri)
    with pytest.raises(MlflowException, match="out-of-date"):
        utils._verify_schema(sqlalchemy.create_engine(uri))
    for each in (uri, f"sqlite:///{tmp_path / 'empty.db'}", uri):
        monkeypatch.setenv(migration.URI_VARIABLE, each)
        migration.main()
        engine = sqlalchemy.create_engine(each)
        utils._verify_schema(engine)
        assert utils._all_tables_exist(engine)
    assert "has the schema of this MLflow" in capsys.readouterr().out


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    pytest.importorskip("psycopg2")
    if binaries() is None:
        pytest.skip("needs PostgreSQL, and there is none")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)  # its server is another user
        server = Postgres(Path(folder))
        server.start()
        yield server
        server.stop()


def test_a_database_that_cannot_hold_every_character_is_refused(postgres: Postgres) -> None:
    postgres.client("createdb", "--encoding=SQL_ASCII", "--template=template0", "ascii")
    with pytest.raises(UserError, match="is in SQL_ASCII instead of UTF8; make it again"):
        migration.migrate(postgres.uri("ascii"))
    postgres.client("createdb", "--encoding=UTF8", "--template=template0", "mlflow")
    migration.migrate(postgres.uri("mlflow"))


def test_a_database_of_a_newer_mlflow_and_none_at_all_get_a_sentence(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migration.migrate(uri)
    with sqlalchemy.create_engine(uri).begin() as connection:
        connection.execute(sqlalchemy.text("UPDATE alembic_version SET version_num = 'later'"))
    with pytest.raises(UserError, match=r"cannot be used: .*'later'"):
        migration.migrate(uri)
    monkeypatch.delenv(migration.URI_VARIABLE, raising=False)
    with pytest.raises(SystemExit, match="names no database; set it"):
        migration.main()
