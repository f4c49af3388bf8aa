"""Ray in Kubernetes: its cluster, its nodes' settings, and a run as a RayJob."""

import shlex
from pathlib import Path

import yaml

from tests.delivery.declared import KUBERNETES, is_command
from tests.delivery.overlays import Manifest, containers, of_kind


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


def test_rays_version_is_the_images(overlay: list[Manifest]) -> None:
    (cluster,) = of_kind(overlay, "RayCluster").values()
    pins = (KUBERNETES.parents[1] / "constraints.txt").read_text().splitlines()
    assert f"ray=={cluster['spec']['rayVersion']}" in pins


def test_the_run_is_a_command_on_that_cluster(overlay: list[Manifest]) -> None:
    job = yaml.safe_load(Path(KUBERNETES / "rayjob.yaml").read_text())
    (cluster,) = of_kind(overlay, "RayCluster")
    assert job["spec"]["clusterSelector"] == {"ray.io/cluster": cluster}
    assert job["metadata"]["namespace"] in of_kind(overlay, "Namespace")
    # With it KubeRay 1.5 deletes the cluster that it selects, and 1.6 refuses the manifest.
    assert "backoffLimit" not in job["spec"]
    # KubeRay refuses it for a job whose cluster stays.
    assert job["spec"].get("shutdownAfterJobFinishes") or (
        "ttlSecondsAfterFinished" not in job["spec"]
    )
    words = shlex.split(job["spec"]["entrypoint"])
    assert is_command(words)

    from flows.checks import check_run
    from pipelines.recipes.files import read_recipe

    given = [words[n + 1] for n, word in enumerate(words) if word == "--set"]
    recipe = read_recipe(words[2], given)
    assert recipe.runtime.training_workers == (1, 4)
    check_run(recipe, "registration")  # the range is longer than a step of the demo can use
