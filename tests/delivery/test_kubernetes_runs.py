"""Flow runs in Kubernetes: work pools, their workers, and the Jobs that are made of them."""

import asyncio
from uuid import uuid4

import pytest

from tests.delivery.declared import is_command
from tests.delivery.overlays import VERSIONS, Manifest, containers, of_kind, work_pool


def test_a_flow_run_brings_the_token_of_the_operator(
    overlay: list[Manifest], secrets: dict[str, set[str]]
) -> None:
    job = work_pool(overlay)["job_configuration"]["job_manifest"]["spec"]["template"]
    (container,) = containers(job)
    drivers = of_kind(overlay, "ConfigMap")["drivers"]["data"]
    (cluster,) = of_kind(overlay, "RayCluster")
    volumes = {each["name"]: each for each in job["spec"]["volumes"]}
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "ray")
    assert drivers["RAY_AUTH_TOKEN_PATH"] == f"{mount['mountPath']}/auth_token"
    assert volumes["ray"]["secret"]["secretName"] == cluster
    # Ray takes the variable before the file, and it would be another token.
    assert "RAY_AUTH_TOKEN" not in secrets["bertsmith-clients"] | drivers.keys()


def test_prefect_makes_a_job_of_the_work_pool(overlay: list[Manifest], prefect_api: str) -> None:
    worker = pytest.importorskip("prefect_kubernetes.worker")
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    pool = work_pool(overlay)
    made = asyncio.run(
        worker.KubernetesWorkerJobConfiguration.from_template_and_values(
            base_job_template=pool, values={"env": {"SOME": "value"}, "name": "run"}
        )
    )
    made.command = "prefect flow-run execute"
    made._populate_env_in_manifest()
    made._populate_command_if_not_present()
    manifest = made.job_manifest
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    assert {"name": "SOME", "value": "value"} in container["env"]
    assert container["args"] == ["prefect", "flow-run", "execute"]
    assert is_command(container["args"])
    assert container["image"] == pool["variables"]["properties"]["image"]["default"]
    manifest["metadata"]["generateName"] = "run-"
    kubernetes_validate.validate(manifest, VERSIONS[-1], strict=True)


def test_a_flow_run_whose_pod_is_told_to_go_is_scheduled_again(
    overlay: list[Manifest], prefect_api: str
) -> None:
    worker = pytest.importorskip("prefect_kubernetes.worker")
    from prefect.client.schemas.objects import FlowRun

    made = asyncio.run(
        worker.KubernetesWorkerJobConfiguration.from_template_and_values(
            base_job_template=work_pool(overlay), values={}
        )
    )
    made.prepare_for_flow_run(FlowRun(flow_id=uuid4(), name="run"))
    pod = made.job_manifest["spec"]["template"]["spec"]
    said = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    # What Prefect's worker makes of a Job that Kubernetes tries once.
    assert said["PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR"] == "reschedule"
    assert pod["terminationGracePeriodSeconds"] > 30  # what `prefect flow-run execute` waits
