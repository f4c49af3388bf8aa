"""The overlays for Kubernetes, rendered: schemas, and that what they name is there."""

import re

import pytest

from tests.delivery.declared import is_command
from tests.delivery.overlays import (
    VERSIONS,
    Manifest,
    containers,
    of_kind,
    pod_templates,
    work_pool,
)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_every_object(overlay: list[Manifest], version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for each in overlay:
        if not each["apiVersion"].startswith("ray.io/"):
            kubernetes_validate.validate(each, version, strict=True)
    for name, template in pod_templates(overlay):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **template}
        pod["metadata"] = {**template["metadata"], "name": re.sub(r"\W", "-", name).lower()}
        kubernetes_validate.validate(pod, version, strict=True)


def test_every_role_is_a_command_of_the_image(overlay: list[Manifest]) -> None:
    for name, template in pod_templates(overlay):
        for each in containers(template):
            assert "RayCluster" in name or is_command(each["args"]), f"{name}: {each.get('args')}"


def test_ports_that_are_named_are_open(overlay: list[Manifest]) -> None:
    services = of_kind(overlay, "Service")
    deployments = of_kind(overlay, "Deployment")
    for name, service in services.items():
        (container,) = deployments[name]["spec"]["template"]["spec"]["containers"]
        opened = {each["name"]: each["containerPort"] for each in container["ports"]}
        for port in service["spec"]["ports"]:
            assert opened[port["targetPort"]] == port["port"]
            assert any(str(port["port"]) in argument for argument in container["args"])
    asked = [v for each in of_kind(overlay, "ConfigMap").values() for v in each["data"].values()]
    for host, port in re.findall(r"http://([a-z]+):(\d+)", " ".join(asked)):
        if host in services:
            assert services[host]["spec"]["ports"][0]["port"] == int(port)
    named = {port["name"] for _, pod in pod_templates(overlay) for each in containers(pod)
             for port in each.get("ports", ())}  # fmt: skip
    for policy in of_kind(overlay, "NetworkPolicy").values():
        for rule in policy["spec"].get("ingress", ()):
            assert {port["port"] for port in rule.get("ports", ())} <= named


def test_no_pod_is_root_or_may_become_it(overlay: list[Manifest]) -> None:
    job = work_pool(overlay)["job_configuration"]["job_manifest"]["spec"]["template"]
    for name, template in [*pod_templates(overlay), ("a flow run", job)]:
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True, name
        for each in containers(template):
            assert each["securityContext"]["allowPrivilegeEscalation"] is False, name
            assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
            assert each["resources"]["requests"].keys() >= {"cpu", "memory"}, name
            assert each["resources"]["limits"]["memory"], name
