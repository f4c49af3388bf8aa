"""The overlays for Kubernetes, rendered: schemas, and that what they name is there."""

import re
import shlex
from pathlib import Path

import pytest

from tests.delivery.declared import (
    DEPLOYING,
    ROOT,
    is_command,
)
from tests.delivery.overlays import (
    VERSIONS,
    Manifest,
    containers,
    of_kind,
    pod_templates,
    work_pool,
)

OPERATIONS = ROOT / "docs" / "operations.md"


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


def typed(page: Path) -> list[list[str]]:
    """The words of every command for a cluster on a page."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(r"^ *kubectl ([^\n]+)|`kubectl ([^`]+)`", text, re.MULTILINE)
    return [shlex.split(block or inline, comments=True) for block, inline in found]


def test_commands_of_the_runbooks_name_what_is_there(overlay: list[Manifest]) -> None:
    (cluster,) = of_kind(overlay, "RayCluster").values()
    name = cluster["metadata"]["name"]
    head = containers(cluster["spec"]["headGroupSpec"]["template"])
    seen = set()
    for words in [*typed(DEPLOYING), *typed(OPERATIONS)]:
        if words[1] == "namespace" or words[0] == "apply":
            continue
        assert words[0] == "--namespace", words
        assert words[1] in of_kind(overlay, "Namespace"), words
        seen.add(words[2])
        if words[2:5] == ["delete", "pod", "--selector"]:
            assert words[5] == f"ray.io/cluster={name}"  # KubeRay's label of all pods of a cluster
        if words[2:4] == ["delete", "job"]:
            assert words[4] in of_kind(overlay, "Job")
        if words[2] == "exec":
            assert words[3] == f"service/{name}-head-svc"  # KubeRay's name of the head's service
            assert words[words.index("--container") + 1] in {each["name"] for each in head}
            program, address, *command = words[words.index("--") + 1 :]
            drivers = of_kind(overlay, "ConfigMap")["drivers"]["data"]
            assert (program, address) == ("env", f"RAY_ADDRESS={drivers['BERTSMITH_RAY_HEAD']}")
            assert is_command(command)
    assert {"exec", "delete", "rollout", "patch"} <= seen


def test_no_pod_is_root_or_may_become_it(overlay: list[Manifest]) -> None:
    job = work_pool(overlay)["job_configuration"]["job_manifest"]["spec"]["template"]
    for name, template in [*pod_templates(overlay), ("a flow run", job)]:
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True, name
        for each in containers(template):
            assert each["securityContext"]["allowPrivilegeEscalation"] is False, name
            assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
            assert each["resources"]["requests"].keys() >= {"cpu", "memory"}, name
            assert each["resources"]["limits"]["memory"], name
