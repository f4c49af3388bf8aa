"""The overlays for Kubernetes, rendered: schemas, and that what they name is there."""

import asyncio
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from flows.observability.publishing import PORT_VARIABLE
from flows.services.first_start.credentials import make_credentials
from flows.services.platform.declaration import read_platform
from flows.services.platform.pools import read_template
from pipelines.core.place import PlaceSettings
from pipelines.core.tracking import migration
from tests.delivery.declared import (
    AGENT_PORTS,
    INFRA,
    KUBERNETES,
    ROOT,
    as_prefect_takes_them,
    foreign_names,
    is_command,
)

OVERLAYS = ("cpu", "gpu", "spot", "example")
DEPLOYING = ROOT / "docs" / "deploying.md"
OPERATIONS = ROOT / "docs" / "operations.md"
VERSIONS = ("1.31.0", "1.37.0")  # of Kubernetes: the oldest and the newest that are checked
Manifest = dict[str, Any]


@pytest.fixture(scope="module", params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> list[Manifest]:
    """Every object of an overlay, as `kubectl apply --kustomize` would send it."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl renders the overlays, and there is none")
    done = subprocess.run(
        ["kubectl", "kustomize", KUBERNETES / "overlays" / request.param],
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
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "work-pool.json"
        path.write_text(held["data"]["work-pool.json"], encoding="utf-8")
        return read_template(path, maps["places"]["data"]["BERTSMITH_IMAGE"])


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The names in the two Secrets, which are made from these files."""
    folder = tmp_path_factory.mktemp("credentials")
    make_credentials(folder / "credentials")
    (edit,) = re.findall(r"^(sed -i .*?)\s+#", DEPLOYING.read_text(), flags=re.MULTILINE)
    subprocess.run(["sh", "-c", edit], cwd=folder, check=True)
    return {
        f"bertsmith-{part}": set(re.findall(
            r"^(\w+)=", (folder / "credentials" / part / "environment").read_text(), re.MULTILINE
        ))
        for part in ("clients", "servers")
    }  # fmt: skip


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


def test_rays_own_autoscaler_reads_the_cluster(overlay: list[Manifest]) -> None:
    from ray.autoscaler._private.kuberay import autoscaling_config

    (cluster,) = of_kind(overlay, "RayCluster").values()
    read = autoscaling_config._derive_autoscaling_config_from_ray_cr(cluster)
    nodes = read["available_node_types"]
    assert nodes[read["head_node_type"]]["resources"]["CPU"] == 0
    cpu = nodes["cpu"]
    assert (cpu["min_workers"], cpu["max_workers"], cpu["resources"]["CPU"]) == (1, 8, 4)
    is_cuda = containers(cluster["spec"]["headGroupSpec"]["template"])[0]["image"].endswith("-cuda")
    assert is_cuda == ("gpu" in nodes)
    if is_cuda:
        gpu = nodes["gpu"]
        assert (gpu["resources"]["CPU"], gpu["resources"]["GPU"]) == (8, 1)
        assert (gpu["min_workers"], gpu["max_workers"]) == (0, 8)


def test_a_training_waits_for_nodes_of_groups_that_stand_at_none(
    overlay: list[Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    (cluster,) = of_kind(overlay, "RayCluster").values()
    groups = cluster["spec"]["workerGroupSpecs"]
    assert all(group["replicas"] == group["minReplicas"] for group in groups)
    maps = of_kind(overlay, "ConfigMap")
    job = work_pool(overlay)["job_configuration"]["job_manifest"]["spec"]["template"]
    # A run of the work pool, and one that a RayJob runs on the head.
    for template in (job, cluster["spec"]["headGroupSpec"]["template"]):
        (container,) = containers(template)
        for source in container["envFrom"]:
            if "configMapRef" in source:
                for name, value in maps[source["configMapRef"]["name"]]["data"].items():
                    monkeypatch.setenv(name, value)
        ranks = PlaceSettings(device="gpu").ranks()
        # Longer than a pod with a large image takes, and than an idle node stays.
        idle = cluster["spec"]["autoscalerOptions"]["idleTimeoutSeconds"]
        assert ranks.wait_for_nodes_seconds > max(600, idle)
        monkeypatch.delenv("BERTSMITH_WAIT_FOR_NODES_SECONDS")


def test_every_node_of_ray_is_asked_where_it_answers_without_the_token(
    overlay: list[Manifest],
) -> None:
    from ray._private.ray_constants import DEFAULT_DASHBOARD_AGENT_LISTEN_PORT
    from ray.dashboard.http_server_agent import PUBLIC_EXACT_PATHS

    nodes = [template for name, template in pod_templates(overlay) if "RayCluster" in name]
    assert len(nodes) >= 2
    for template in nodes:
        (container,) = containers(template)
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        for probe in ("readinessProbe", "livenessProbe"):
            asked = container[probe]["httpGet"]
            assert asked["path"] in PUBLIC_EXACT_PATHS
            assert ports[asked["port"]] == DEFAULT_DASHBOARD_AGENT_LISTEN_PORT


def test_rays_objects_find_room_in_shared_memory(overlay: list[Manifest]) -> None:
    (cluster,) = of_kind(overlay, "RayCluster").values()
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    asked = [(int(g["rayStartParams"]["object-store-memory"]), g["template"]) for g in groups]
    # A flow run's own node is started by the entry point.
    job = work_pool(overlay)["job_configuration"]["job_manifest"]["spec"]["template"]
    (driver,) = re.findall(r"--object-store-memory=(\d+)", (INFRA / "entrypoint.sh").read_text())
    for size, template in [*asked, (int(driver), job)]:
        (limit,) = (
            each["emptyDir"]["sizeLimit"]
            for each in template["spec"]["volumes"] if each["name"] == "shared-memory"
        )  # fmt: skip
        assert size < int(limit.removesuffix("Gi")) * 2**30


def test_no_node_waits_for_an_agent_to_choose_a_port(overlay: list[Manifest]) -> None:
    (cluster,) = of_kind(overlay, "RayCluster").values()
    for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
        assert set(group["rayStartParams"]) >= AGENT_PORTS
        ports = [group["rayStartParams"][name] for name in AGENT_PORTS]
        assert len(set(ports)) == len(ports)


def test_rays_version_is_the_images(overlay: list[Manifest]) -> None:
    (cluster,) = of_kind(overlay, "RayCluster").values()
    pins = (KUBERNETES.parents[1] / "constraints.txt").read_text().splitlines()
    assert f"ray=={cluster['spec']['rayVersion']}" in pins


def test_one_image_everywhere_and_for_runs(overlay: list[Manifest]) -> None:
    images = {each["image"] for _, pod in pod_templates(overlay) for each in containers(pod)}
    assert images == {work_pool(overlay)["variables"]["properties"]["image"]["default"]}


def test_every_role_is_a_command_of_the_image(overlay: list[Manifest]) -> None:
    for name, template in pod_templates(overlay):
        for each in containers(template):
            assert "RayCluster" in name or is_command(each["args"]), f"{name}: {each.get('args')}"


def test_every_variable_means_something(
    overlay: list[Manifest], secrets: dict[str, set[str]]
) -> None:
    places = of_kind(overlay, "ConfigMap")
    job = work_pool(overlay)["job_configuration"]["job_manifest"]["spec"]["template"]
    everywhere = [*pod_templates(overlay), ("a flow run", job)]
    arguments = set(re.findall(r"\$\((\w+)\)", str([pod for _, pod in everywhere])))
    assert arguments == {"BERTSMITH_IMAGE", "BERTSMITH_MLFLOW_HOSTS"}
    assert arguments <= places["places"]["data"].keys()
    for name, template in everywhere:
        for each in containers(template):
            listed = each["env"] if isinstance(each.get("env"), list) else []
            variables = {own["name"]: value_of(own, places) for own in listed}
            for source in each.get("envFrom", ()):
                if "configMapRef" in source:
                    variables |= places[source["configMapRef"]["name"]]["data"]
                else:
                    variables |= dict.fromkeys(secrets[source["secretRef"]["name"]], "a:b")
            assert not foreign_names(variables.keys() - arguments), name
            as_prefect_takes_them(variables)


def value_of(variable: Manifest, places: dict[str, Manifest]) -> str:
    """As a pod's container gets it: as it stands there, or from a ConfigMap."""
    if "value" in variable:
        return str(variable["value"])
    key = variable["valueFrom"]["configMapKeyRef"]
    return str(places[key["name"]]["data"][key["key"]])


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


def test_a_volume_for_one_node_is_let_go_before_the_next_pod_asks_for_it(
    overlay: list[Manifest],
) -> None:
    claims = of_kind(overlay, "PersistentVolumeClaim")
    holders = [
        each for each in of_kind(overlay, "Deployment").values()
        for volume in each["spec"]["template"]["spec"].get("volumes", ())
        if "persistentVolumeClaim" in volume
        and claims[volume["persistentVolumeClaim"]["claimName"]]["spec"]["accessModes"]
        == ["ReadWriteOnce"]
    ]  # fmt: skip
    assert [each["spec"]["strategy"] for each in holders] == [{"type": "Recreate"}]


def test_mlflow_starts_alone_on_a_database_that_was_migrated(overlay: list[Manifest]) -> None:
    server = of_kind(overlay, "Deployment")["mlflow"]["spec"]
    assert server["strategy"] == {"type": "Recreate"}
    (first,) = server["template"]["spec"]["initContainers"]
    assert first["args"] == ["python", "-m", migration.__name__]
    assert {"secretRef": {"name": "bertsmith-servers"}} in first["envFrom"]


def test_late_answers_end_no_server(overlay: list[Manifest]) -> None:
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    asked = [
        (name, each[probe])
        for name, template in pod_templates(overlay)
        for each in containers(template)
        for probe in probes if probe in each
    ]  # fmt: skip
    assert len(asked) >= 12
    for name, probe in asked:
        assert probe.get("timeoutSeconds", 1) >= 5, name
    for name in ("prefect", "mlflow"):  # what a migration of the database takes
        server = of_kind(overlay, "Deployment")[name]["spec"]["template"]["spec"]["containers"][0]
        start = server["startupProbe"]
        assert start.get("periodSeconds", 10) * start["failureThreshold"] >= 300
        assert start["httpGet"] == server["livenessProbe"]["httpGet"]


def test_policies_and_budgets_choose_pods_that_are_there(overlay: list[Manifest]) -> None:
    labels = [template["metadata"]["labels"] for _, template in pod_templates(overlay)]
    chosen = [
        (each["kind"], each["spec"].get("podSelector") or each["spec"].get("selector"))
        for kind in ("NetworkPolicy", "PodDisruptionBudget")
        for each in of_kind(overlay, kind).values()
    ]
    assert len(chosen) == 7
    for kind, selector in chosen:
        assert not selector or any(_chooses(selector, each) for each in labels), (
            f"{kind} {selector}"
        )


def _chooses(selector: Manifest, labels: dict[str, str]) -> bool:
    matches = selector.get("matchLabels", {}).items() <= labels.items()
    return matches and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", ())
    )


def test_no_budget_keeps_the_last_worker_where_it_is(overlay: list[Manifest]) -> None:
    (cluster,) = of_kind(overlay, "RayCluster").values()
    groups = cluster["spec"]["workerGroupSpecs"]
    for name, budget in of_kind(overlay, "PodDisruptionBudget").items():
        chosen = [
            group["minReplicas"]
            for group in groups
            if _chooses(budget["spec"]["selector"], group["template"]["metadata"]["labels"])
        ]
        # At rest there are no more than these, and a drain would wait for ever.
        assert not chosen or sum(chosen) > budget["spec"]["minAvailable"], name


def scraped() -> dict[str, list[Manifest]]:
    """What a Prometheus of one's own is told to ask: its rules of relabelling, by job."""
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
        assert len(jobs) == (port["name"] in ("metrics", "run-metrics") or "prefect" in jobs), name
        for job in jobs:
            asked[job].add((name, port["containerPort"]))
            assert any(
                _chooses(policy["podSelector"], labels)
                and {"port": port["name"]} in policy["ingress"][0]["ports"]
                for policy in policies
            ), f"{job} may not ask {name}"
    ray = {name for name, _ in pod_templates(overlay) if name.startswith("RayCluster")}
    assert asked == {
        "bertsmith": {("Deployment metrics", 9464)},
        "bertsmith-runs": {("a flow run", 9464), ("RayCluster bertsmith", 9464)},
        "prefect": {("Deployment prefect", 4200)},
        "ray": {(name, 8080) for name in ray},
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
        assert words[1] in {*of_kind(overlay, "Namespace"), "monitoring"}, words
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


def test_every_work_pool_has_a_worker(overlay: list[Manifest]) -> None:
    workers = of_kind(overlay, "Deployment")["worker"]["spec"]["template"]["spec"]["containers"]
    served = [each["args"][each["args"].index("--pool") + 1] for each in workers]
    assert served == [pool.name for pool in read_platform().work_pools]
    for each in workers:
        # A pool is the preparation's to make: a worker's own would have Prefect's template.
        assert "--no-create-pool-if-not-found" in each["args"]
        assert each["args"][each["args"].index("--type") + 1] == "kubernetes"
        (port,) = each["ports"]
        assert each["env"][0]["value"] == str(port["containerPort"])
        assert each["livenessProbe"]["httpGet"]["port"] == port["name"]


def test_workers_watch_where_their_role_lets_them_and_hide_the_password(
    overlay: list[Manifest], secrets: dict[str, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = pytest.importorskip("prefect_kubernetes.settings")
    for name, value in of_kind(overlay, "ConfigMap")["workers"]["data"].items():
        monkeypatch.setenv(name, value)
    read = settings.KubernetesSettings()
    role = of_kind(overlay, "Role")["worker"]
    assert read.observer.namespaces == {role["metadata"]["namespace"]}
    secret, key = read.worker.api_auth_string_secret_name, read.worker.api_auth_string_secret_key
    assert key == "PREFECT_API_AUTH_STRING"
    assert key in secrets[secret]
    workers = containers(of_kind(overlay, "Deployment")["worker"]["spec"]["template"])
    for each in workers:
        assert {"configMapRef": {"name": "workers"}} in each["envFrom"]


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


def test_the_run_is_a_command_on_that_cluster(overlay: list[Manifest]) -> None:
    job = yaml.safe_load(Path(KUBERNETES / "rayjob.yaml").read_text())
    (cluster,) = of_kind(overlay, "RayCluster")
    assert job["spec"]["clusterSelector"] == {"ray.io/cluster": cluster}
    assert job["metadata"]["namespace"] in of_kind(overlay, "Namespace")
    # KubeRay refuses it for a job whose cluster stays.
    assert job["spec"].get("shutdownAfterJobFinishes") or (
        "ttlSecondsAfterFinished" not in job["spec"]
    )
    entrypoint = shlex.split(job["spec"]["entrypoint"])
    variables = dict(word.split("=") for word in entrypoint if word.startswith("BERTSMITH_"))
    assert not foreign_names(variables)
    opened = containers(
        of_kind(overlay, "RayCluster")[cluster]["spec"]["headGroupSpec"]["template"]
    )
    ports = {each["name"]: each["containerPort"] for each in opened[0]["ports"]}
    assert variables[PORT_VARIABLE] == str(ports["run-metrics"])
    words = entrypoint[len(variables) :]
    assert is_command(words)

    from flows.checks import check_recipe
    from pipelines.core.recipes.files import read_recipe
    from pipelines.core.recipes.ladder import EndToEndRecipe
    from pipelines.stages import CHAIN

    given = [words[n + 1] for n, word in enumerate(words) if word == "--set"]
    recipe = read_recipe(EndToEndRecipe, words[2], given)
    assert recipe.place.training_workers == (1, 4)
    check_recipe(recipe, CHAIN)  # the range is longer than a step of the demo can use
