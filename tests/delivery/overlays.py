"""The overlays for Kubernetes, rendered, and how their objects are found."""

import json
import subprocess
from collections.abc import Iterator
from functools import cache
from typing import Any

import yaml

from tests.delivery.declared import KUBERNETES

OVERLAYS = ("cpu", "gpu", "spot", "example")
VERSIONS = ("1.31.0", "1.37.0")  # of Kubernetes: the oldest and the newest that are checked
Manifest = dict[str, Any]


@cache
def rendered(name: str) -> list[Manifest]:
    """Every object of an overlay, as `kubectl apply --kustomize` would send it."""
    done = subprocess.run(
        ["kubectl", "kustomize", KUBERNETES / "overlays" / name],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(objects: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def pod_templates(objects: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Every template of pods, by the name of what makes them."""
    for each in objects:
        name, spec = f"{each['kind']} {each['metadata']['name']}", each.get("spec", {})
        if each["kind"] in ("Deployment", "Job"):
            yield name, spec["template"]
        if each["kind"] == "RayCluster":
            yield name, spec["headGroupSpec"]["template"]
            for group in spec["workerGroupSpecs"]:
                yield f"{name} {group['groupName']}", group["template"]


def containers(template: Manifest) -> list[Manifest]:
    return [*template["spec"].get("initContainers", ()), *template["spec"]["containers"]]


def work_pool(objects: list[Manifest]) -> Manifest:
    maps = of_kind(objects, "ConfigMap")
    (held,) = (each for name, each in maps.items() if name.startswith("work-pool"))
    image = maps["places"]["data"]["BERTSMITH_IMAGE"]  # as the preparation's sed does
    template: Manifest = json.loads(
        held["data"]["work-pool.json"].replace("BERTSMITH_IMAGE", image)
    )
    return template


def chooses(selector: Manifest, labels: dict[str, str]) -> bool:
    """Whether a selector of pods means those with these labels."""
    matches = selector.get("matchLabels", {}).items() <= labels.items()
    return matches and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", ())
    )
