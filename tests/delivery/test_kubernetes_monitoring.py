"""Monitoring in Kubernetes: whom a Prometheus of one's own finds, and whether it may ask."""

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from flows.services.first_start import make_credentials
from tests.delivery.declared import DEPLOYING, INFRA
from tests.delivery.overlays import (
    Manifest,
    chooses,
    containers,
    of_kind,
    pod_templates,
    work_pool,
)


def scraped() -> dict[str, list[Manifest]]:
    """The relabelling rules for a Prometheus of one's own, by job."""
    read = yaml.safe_load((INFRA / "monitoring" / "kubernetes.yaml").read_text(encoding="utf-8"))
    return {job["job_name"]: job["relabel_configs"] for job in read["scrape_configs"]}


def found_pods(
    objects: list[Manifest], phase: str = "Running"
) -> Iterator[tuple[str, Manifest, Manifest, dict[str, str]]]:
    """Every port of every pod, with the labels under which Prometheus finds it."""
    job = work_pool(objects)["job_configuration"]["job_manifest"]["spec"]["template"]
    for name, template in [*pod_templates(objects), ("a flow run", job)]:
        labels = template["metadata"]["labels"]
        meta = {
            "__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", key): value
            for key, value in labels.items()
        }
        for port in (port for each in containers(template) for port in each.get("ports", ())):
            yield name, labels, port, {
                **meta,
                "__meta_kubernetes_pod_container_port_name": port["name"],
                "__meta_kubernetes_pod_phase": phase,
            }  # fmt: skip


def is_kept(meta: dict[str, str], rules: list[Manifest]) -> bool:
    """As Prometheus decides it; every rule of ours keeps or leaves out."""
    assert {rule["action"] for rule in rules} == {"keep"}
    return all(
        re.fullmatch(rule["regex"], ";".join(meta.get(each, "") for each in rule["source_labels"]))
        for rule in rules
    )


def test_prometheus_finds_everybody_who_tells_figures_and_may_ask(overlay: list[Manifest]) -> None:
    asked: dict[str, set[tuple[str, int]]] = {job: set() for job in scraped()}
    policies = [
        policy["spec"]
        for policy in of_kind(overlay, "NetworkPolicy").values()
        if {"namespaceSelector": {"matchLabels": {"bertsmith/metrics": "allowed"}}}
        in [each for rule in policy["spec"].get("ingress", ()) for each in rule["from"]]
    ]
    for name, labels, port, meta in found_pods(overlay):
        jobs = [job for job, rules in scraped().items() if is_kept(meta, rules)]
        assert len(jobs) == (port["name"] == "metrics" or "prefect" in jobs), name
        for job in jobs:
            asked[job].add((name, port["containerPort"]))
            assert any(
                chooses(policy["podSelector"], labels)
                and {"port": port["name"]} in policy["ingress"][0]["ports"]
                for policy in policies
            ), f"{job} may not ask {name}"
    ray = {name for name, _ in pod_templates(overlay) if name.startswith("RayCluster")}
    assert asked == {
        "bertsmith": {("Deployment metrics", 9464)},
        "prefect": {("Deployment prefect", 4200)},
        "ray": {("a flow run", 52368), *((name, 8080) for name in ray)},
    }


def test_prometheus_asks_nobody_who_has_ended(overlay: list[Manifest]) -> None:
    for name, _, _, meta in found_pods(overlay, phase="Succeeded"):
        assert not any(is_kept(meta, rules) for rules in scraped().values()), name


def test_prometheus_brings_passwords_that_are_made(tmp_path: Path) -> None:
    make_credentials(tmp_path / "credentials")
    given = re.findall(r"--from-file (credentials/prometheus/\w+)", DEPLOYING.read_text())
    assert all((tmp_path / name).is_file() for name in given)
    text = (INFRA / "monitoring" / "kubernetes.yaml").read_text()
    needed = set(re.findall(r"/etc/bertsmith/passwords/(\w+)", text))
    assert needed == {Path(name).name for name in given}
