"""Automations on a real server: events become actions."""

import os
import subprocess
import sys
import time
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter
from prefect.states import Failed, Running

from flows.services.deployments import Source
from flows.services.platform import NOTIFY_VARIABLE, apply, read_platform
from tests.flows.person import wait_until

pytestmark = pytest.mark.slow

_PROMOTIONS = """
from flows.promote import emit_promotion
from pipelines.registry.promote import Promotion
for moved in ("classifier candidate", "encoder champion", "classifier champion"):
    kind, alias = moved.split()
    name = "bertsmith-" + kind
    emit_promotion(Promotion(name=name, version=2, alias=alias, previous_version=1))
"""


def test_a_failed_run_writes_to_the_webhook_once(
    prefect_api: str, webhook: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = os.environ[NOTIFY_VARIABLE]
    monkeypatch.setenv(NOTIFY_VARIABLE, "http://127.0.0.1:9/moved-away")
    apply(read_platform(), Source.installed(), {})
    monkeypatch.setenv(NOTIFY_VARIABLE, address)  # a new one is taken where automations are there
    apply(read_platform(), Source.installed(), {})
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("corpus/corpus")
        run = client.create_flow_run_from_deployment(deployment.id, name="of-a-webhook")
        client.set_flow_run_state(run.id, Running())
        client.set_flow_run_state(run.id, Failed(message="the disk is full"))
    wait_until(lambda: bool(webhook))
    assert webhook == [{"text": "Bertsmith: of-a-webhook is Failed: the disk is full"}]


def test_a_new_champion_starts_the_batch_prediction_once_a_person_switched_it_on(
    prefect_api: str,
) -> None:
    platform = read_platform()
    (declared,) = (each for each in platform.automations if "promoted" in str(each["trigger"]))
    name = declared["name"]
    with get_client(sync_client=True) as client:
        for left in client.read_automations_by_name(name):  # by the tests before
            client.delete_automation(left.id)
        notes = apply(platform, None, {})
        (note,) = (note for note in notes if name in note)
        assert "is new and switched off" in note
        assert "name these files in the parameters of the deployment predict" in note
        (made,) = client.read_automations_by_name(name)
        assert not made.enabled
        client.resume_automation(made.id)
        assert not [note for note in apply(platform, None, {}) if name in note]
        assert client.read_automations_by_name(name)[0].enabled
        deployment = client.read_deployment_by_name("predict/predict").id

        def runs() -> int:
            chosen = DeploymentFilter.model_validate({"id": {"any_": [deployment]}})
            return len(client.read_flow_runs(deployment_filter=chosen))

        # In a process of its own, as a run's: Prefect sends events by the settings of a process.
        subprocess.run([sys.executable, "-c", _PROMOTIONS], env=dict(os.environ), check=True)
        wait_until(lambda: runs() > 0)
        time.sleep(2)
        assert runs() == 1  # a candidate is no champion, and an encoder answers nothing
