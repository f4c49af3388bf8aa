"""A run that was stopped to be rescheduled resumes only when its previous process holds nothing."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.states import AwaitingRetry, Pending, Running

from flows import run, stopping
from flows.batch_prediction import BatchPredictionRecipe, batch_prediction
from flows.stopping import seconds_to_wait, wait_for_last_try
from pipelines.artifacts import ArtifactStore
from pipelines.artifacts.claims import LEASE_SECONDS
from pipelines.config.errors import UserError
from pipelines.recipes.models import CorpusRecipe
from tests.integration.object_stores import BUCKET, s3_server


@flow
def learns() -> None:
    pass


@pytest.fixture
def slept(prefect_api: str, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each wait would have lasted."""
    slept: list[float] = []
    # In its own module alone: other threads of the process sleep, too.
    monkeypatch.setattr(stopping, "time", SimpleNamespace(sleep=slept.append))
    return slept


def a_run(*, told_to_go: bool) -> UUID:
    states = [Pending(), Running(), *([AwaitingRetry(), Running()] if told_to_go else [])]
    with get_client(sync_client=True) as client:
        flow_id = client.create_flow(learns)
        deployment = client.create_deployment(flow_id=flow_id, name="taken-up-again")
        made = client.create_flow_run_from_deployment(deployment)
        for state in states:
            client.set_flow_run_state(made.id, state)
    return made.id


def be_in_second_try(monkeypatch: pytest.MonkeyPatch, *, told_to_go: bool) -> None:
    flow_run = {"RUN_COUNT": "2", "ID": str(a_run(told_to_go=told_to_go))}
    for name, value in flow_run.items():
        monkeypatch.setenv(f"PREFECT__RUNTIME__FLOW_RUN__{name}", value)


def test_it_waits_for_the_signals_and_the_lease_and_no_longer(prefect_api: str) -> None:
    told, now = a_run(told_to_go=True), datetime.now(UTC)
    seconds = seconds_to_wait(told, now)
    assert 30 + LEASE_SECONDS < seconds <= 30 + LEASE_SECONDS + 15
    assert seconds_to_wait(told, now + timedelta(seconds=60)) == pytest.approx(seconds - 60)
    assert seconds_to_wait(told, now + timedelta(hours=1)) == 0


def test_it_says_so(slept: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = ArtifactStore(f"memory://{tmp_path.name}/store")
    noted: list[str] = []
    be_in_second_try(monkeypatch, told_to_go=False)
    wait_for_last_try(store, noted.append)
    assert not slept
    be_in_second_try(monkeypatch, told_to_go=True)
    wait_for_last_try(store, noted.append)
    assert len(slept) == 1
    (said,) = noted
    assert said.endswith("the process of the last try may still be saving")


@pytest.mark.slow
@pytest.mark.parametrize("is_local", [False, True])
def test_a_run_on_an_object_store_waits_before_it_builds(
    slept: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_local: bool
) -> None:
    be_in_second_try(monkeypatch, told_to_go=True)
    with s3_server(monkeypatch):
        place = {"home": str(tmp_path), "store": "" if is_local else f"s3://{BUCKET}/again"}
        recipe = CorpusRecipe.model_validate({"runtime": place})

        @flow
        def builds() -> None:
            with run.started_run("corpus", recipe, (), default=recipe):
                pass

        builds()
    assert len(slept) == (not is_local)


def test_a_batch_prediction_waits_as_well(
    slept: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    be_in_second_try(monkeypatch, told_to_go=True)
    with s3_server(monkeypatch):
        place = {"home": str(tmp_path), "store": f"s3://{BUCKET}/again"}
        recipe = BatchPredictionRecipe.model_validate({"runtime": place})
        with pytest.raises(UserError, match="needs files to answer"):
            batch_prediction(recipe)
    assert len(slept) == 1
