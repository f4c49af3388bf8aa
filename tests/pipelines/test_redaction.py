"""Secrets inside URIs never reach what is written."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from aiohttp import ClientResponseError, RequestInfo
from aiohttp.client import URL

from flows.cli.app import DONE, run
from flows.predict import BatchPredictionRecipe
from pipelines.errors import UserError, clean_error, redacted, without_secrets
from pipelines.recipes.files import completed, read_recipe
from pipelines.recipes.recipe import Recipe
from pipelines.settings import RuntimeSettings
from pipelines.stage import check_tracker

SIGNED = (
    "https://bucket.s3.amazonaws.com/texts.txt.gz?X-Amz-Algorithm=AWS4-HMAC-SHA256"
    "&X-Amz-Credential=AKIAEXAMPLE%2F20261121&X-Amz-Signature=hidden123&X-Amz-Expires=60"
)


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("http://ann:hidden@host:5000/path", "http://host:5000/path"),
        ("postgresql+psycopg2://ann:hidden@db/mlflow", "postgresql+psycopg2://db/mlflow"),
        ("s3://AKIA:hid/den+hidden=@bucket/prefix", "s3://bucket/prefix"),
        ("http://ann:hid'den@host", "http://host"),
        ("http://ann:12345/6@host", "http://host"),
        ("postgresql://ann:hid den@db", "postgresql://db"),
        ("https://h/x#access_token=hidden", "https://h/x#access_token=***"),
        ("https://h/x?code=hidden&jwt=hidden", "https://h/x?code=***&jwt=***"),
        (
            "mssql+pyodbc://?odbc_connect=UID%3Dann%3BPWD%3Dhidden%3BDATABASE%3Dx",
            "mssql+pyodbc://?odbc_connect=UID%3Dann%3BPWD%3D***%3BDATABASE%3Dx",
        ),
        (
            SIGNED,
            "https://bucket.s3.amazonaws.com/texts.txt.gz?X-Amz-Algorithm=AWS4-HMAC-SHA256"
            "&X-Amz-Credential=***&X-Amz-Signature=***&X-Amz-Expires=60",
        ),
        ("https://b.blob.core.windows.net/c?sv=1&sig=hidden%3D", "https://b.blob.core.windows.net/c?sv=1&sig=***"),
    ],
)  # fmt: skip
def test_user_password_and_signature_are_cut(written: str, kept: str) -> None:
    assert redacted(written) == kept


@pytest.mark.parametrize(
    "harmless",
    [
        "sqlite:////home/ann/a@b/mlflow.db",
        "http://127.0.0.1:5000/#/models/x@champion",
        "mail ann@host.org, key=3; a:b@c",
        "https://h/x?page=2&monkey=3&author=me",
    ],
)
def test_nothing_else_is_touched(harmless: str) -> None:
    assert redacted(harmless) == harmless


def test_a_recipe_as_yaml_holds_no_secret_and_the_recipe_itself_still_works() -> None:
    recipe = read_recipe(
        "demo",
        [
            "runtime.tracking_uri=http://ann:hidden@host:5000",
            "runtime.store=s3://key:hidden@bucket/store",
            f"corpus.sources=[{{kind: text, paths: ['{SIGNED}']}}]",
            "dataset.source={kind: labelled_file, path: 'https://ann:hidden@host/a.csv'}",
            "dataset.family=https://ann:hidden@host/task.py",
        ],
    )
    text = recipe.to_yaml()
    assert "hidden" not in text
    assert yaml.safe_load(text)["runtime"]["tracking_uri"] == "http://host:5000"
    assert yaml.safe_load(text)["dataset"]["family"] == "https://host/task.py"
    assert recipe.dataset.family == "https://ann:hidden@host/task.py"
    assert recipe.runtime.tracking_uri == "http://ann:hidden@host:5000"
    assert recipe.corpus.sources[0].paths == (SIGNED,)


def test_a_recipe_that_is_completed_keeps_its_secrets() -> None:
    named = {
        "runtime": {"tracking_uri": "http://ann:hidden@host:5000"},
        "corpus": {"sources": [{"kind": "text", "paths": [SIGNED]}]},
    }
    own = Recipe.model_validate(named)
    demo = read_recipe("demo").values()
    given = Recipe.model_validate({"corpus": {"heldout_fraction": 0.2}})
    for whole in (completed(own, demo), completed(given, completed(own, demo).values())):
        assert whole.runtime.tracking_uri == "http://ann:hidden@host:5000"
        assert whole.corpus.sources[0].paths == (SIGNED,)
        assert "hidden" not in whole.to_yaml()


def test_errors_lose_their_secrets_and_keep_their_kind() -> None:
    @without_secrets
    def reading(path: str) -> None:
        try:
            raise FileNotFoundError(2, "no such file", path)
        except FileNotFoundError as error:
            raise RuntimeError(f"cannot read {path}") from error

    with pytest.raises(RuntimeError) as told:
        reading(SIGNED)
    assert "hidden123" not in str(told.value)
    assert "hidden123" not in str(told.value.__cause__)
    assert isinstance(told.value.__cause__, FileNotFoundError)
    asked: Any = RequestInfo(URL(SIGNED), "GET", cast(Any, {}), URL(SIGNED))
    for error in (FileNotFoundError("%s is gone", SIGNED), ClientResponseError(asked, ())):
        assert "hidden123" in str(error)
        clean_error(error)
        assert "hidden123" not in str(error)
    assert "hidden" not in str(UserError("http://ann:hidden@host must answer"))
    loop = ValueError("http://ann:hidden@host")
    loop.__cause__ = loop
    clean_error(loop)
    assert str(loop) == "http://host"


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("foo://host", "begins with none of http://"),
        ("http://ann:hidden@127.0.0.1:9", "holds a password; give it as MLFLOW_TRACKING_USERNAME"),
        ("sqlite:////no/such/folder/mlflow.db", "cannot be written; name a file in a folder"),
    ],
)
def test_a_tracker_that_cannot_be_there_is_refused_at_once(uri: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as refused:
        check_tracker(RuntimeSettings(tracking_uri=uri))
    assert "hidden" not in str(refused.value)


def test_a_batch_says_where_its_answers_are_without_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def answered(recipe: BatchPredictionRecipe) -> SimpleNamespace:
        asked.append(recipe)
        statistics = {"rows": 1, "files": 1, "model": "m/1"}
        return SimpleNamespace(statistics=statistics, fingerprint="f" * 32, url="")

    monkeypatch.setattr("flows.predict.predict", answered)
    monkeypatch.setattr("flows.cli.predict.prepare_flows", lambda home: lambda: None)
    monkeypatch.setattr("flows.cli.predict.install_stop_handlers", lambda: None)
    monkeypatch.setenv("HOME", str(tmp_path))
    command = ["predict", "--batch", "a.txt", "--model", "m/1", "--home", str(tmp_path)]
    assert run([*command, "--to", "sftp://me:S3cr3t@host/answers"]) == DONE
    assert run([*command, "--to", "~/answers"]) == DONE
    shown = capsys.readouterr().out
    assert f"models:/m/1: sftp://host/answers/{'f' * 16}\n" in shown
    assert f"models:/m/1: {tmp_path}/answers/{'f' * 16}\n" in shown
    assert asked[0].out == "sftp://me:S3cr3t@host/answers"
