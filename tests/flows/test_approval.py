"""A person approves what a run found better, declines, or does not answer."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from prefect import flow, resume_flow_run
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import StateType
from prefect.runtime import flow_run

from flows.end_to_end import end_to_end
from flows.promote import Approval, approval_of, approved
from pipelines.config.errors import UserError
from pipelines.recipes.files import read_recipe
from pipelines.recipes.models import EndToEndRecipe
from pipelines.recipes.registration import RegistrationSettings
from pipelines.registry.comparison.versions import Comparison

COMPARISON = Comparison(name="bert", version=7, is_better=True, reason="better than models:/bert/3")


def answered(values: dict[str, object]) -> list[object]:
    """Answer the next paused flow run, as its page does; what went wrong."""
    paused = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PAUSED]))
    )
    trouble: list[object] = []
    with get_client(sync_client=True) as client:
        for _ in range(240):
            found = client.read_flow_runs(flow_run_filter=paused)
            if found:
                resume_flow_run(found[0].id, run_input=values)
                return trouble
            time.sleep(0.5)
    return ["no run was paused"]


@pytest.mark.slow
def test_a_run_waits_for_a_person(prefect_api: str) -> None:
    @flow(persist_result=False)
    def asks() -> Approval | None:
        return approval_of(COMPARISON, RegistrationSettings(approval_hours=1))

    values = {"approve": True, "who": "ann", "remark": "looked at it"}
    person = threading.Thread(target=answered, args=[values])
    person.start()
    answer = asks()
    person.join()
    assert answer is not None
    assert (answer.approve, answer.who, answer.remark) == (True, "ann", "looked at it")


@pytest.mark.slow
def test_a_run_that_nobody_answers_goes_on_before_prefect_calls_it_failed(prefect_api: str) -> None:
    @flow(persist_result=False)
    def asks_in_vain() -> tuple[Approval | None, str | None]:
        answer = approval_of(COMPARISON, RegistrationSettings(approval_hours=2 / 3600))
        with get_client(sync_client=True) as client:
            run = client.read_flow_run(UUID(flow_run.id))
        return answer, run.state_name

    assert asks_in_vain() == (None, "Running")


@pytest.mark.slow
def test_a_limited_deployment_asks_nobody(
    prefect_api: str, small_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = read_recipe(
        EndToEndRecipe,
        str(small_recipe),
        [f"runtime.home={tmp_path / 'home'}", "registration.approval_hours=1"],
    )
    with get_client(sync_client=True) as client:
        limited = client.create_deployment(
            client.create_flow(end_to_end), "limited", concurrency_limit=1
        )
    monkeypatch.setattr("flows.promote.deployment", SimpleNamespace(id=str(limited)))
    with pytest.raises(UserError, match=r"'limited' has a concurrency limit of 1"):
        end_to_end(recipe)
    assert not list((tmp_path / "home" / "store").glob("*/*/manifest.json"))


def test_what_a_person_said_is_part_of_the_reason() -> None:
    yes = approved(COMPARISON, Approval(approve=True, who="ann", remark="looked at it"))
    assert yes.is_better
    assert yes.reason == "better than models:/bert/3; approved by ann: looked at it"
    no = approved(COMPARISON, Approval(approve=False, who="bea"))
    assert not no.is_better
    assert no.reason == "better than models:/bert/3; bea did not approve it"


def test_what_nobody_answered_waits() -> None:
    waits = approved(COMPARISON, None)
    assert not waits.is_better
    assert waits.reason.endswith("bertsmith promote bert --version 7")
