"""The five checks of `bertsmith doctor`."""

import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from flows.environment import prepare_flows
from pipelines.errors import UserError, first_line, redacted
from pipelines.settings import RuntimeSettings


def checks(runtime: RuntimeSettings, home: Path) -> Iterator[tuple[str, str, bool]]:
    """(name, what was found, whether that is good) of each, quick ones first."""
    for name, check in (
        ("Python", _check_packages),
        ("store", lambda: check_store(runtime)),
        ("tracker", lambda: check_tracker(runtime)),
        ("Prefect", lambda: _check_prefect(home)),
        ("Ray", lambda: _check_ray(runtime)),
    ):
        try:
            yield name, check(), True
        except UserError as error:
            yield name, first_line(error), False


def _check_packages() -> str:
    """This Python has every required package in a version that works."""
    wrong = []
    for requirement in map(Requirement, requires("bertsmith") or []):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            installed = "missing"
        if installed == "missing" or not requirement.specifier.contains(installed, True):
            wrong.append(f"{requirement} is required, {installed} is there")
    if wrong:
        raise UserError(f"{'; '.join(wrong)}; pip install -c constraints.txt bertsmith")
    return f"{platform.python_version()} at {sys.executable}, with all packages"


def check_store(runtime: RuntimeSettings) -> str:
    """The artifact store can be written and read, and creates a file only if there is none."""
    from pipelines.store import ArtifactStore
    from pipelines.store.access import create_only, store_errors

    url = runtime.store_url()
    store = ArtifactStore(url, is_patient=False)
    probe = f"{store.root}/.doctor-{os.getpid()}"
    try:
        store.filesystem.makedirs(store.root, exist_ok=True)
        first = create_only(store.filesystem, probe, b"probe")
        is_kept = first and not create_only(store.filesystem, probe, b"another")
        store.filesystem.rm(probe)
    except store_errors() as error:
        raise UserError(
            f"{url} cannot be used: {first_line(error)}; choose another with --store or "
            "$BERTSMITH_STORE"
        ) from error
    if not is_kept:
        raise UserError(
            f"{url} has no conditional writes (If-None-Match); choose a store that has them, with "
            "--store"
        )
    return redacted(url)


def check_tracker(runtime: RuntimeSettings) -> str:
    """The MLflow tracker answers; a home's own is made by a run."""
    from pipelines import stage

    stage.check_tracker(runtime)
    if not stage.has_registry(runtime):
        return "none yet: a run makes it"
    tracker = stage.open_tracker(runtime)
    tracker.experiment_id()
    return tracker.shown_uri


def _check_prefect(home: Path) -> str:
    """The Prefect API that flows of this home would use answers."""
    prepare_flows(home)()
    from prefect.settings import get_current_settings

    return redacted(get_current_settings().api.url or "")


def _check_ray(runtime: RuntimeSettings) -> str:
    """Ray starts here, or every node of the cluster that RAY_ADDRESS names can take part."""
    from pipelines.cluster import connect, disconnect, nodes
    from pipelines.stage import check_nodes

    try:
        connect()
        check_nodes(runtime)
        resources = nodes()
    finally:
        disconnect()
    cpus, gpus = (sum(node.get(kind, 0) for node in resources) for kind in ("CPU", "GPU"))
    return f"{len(resources)} nodes with {cpus:.0f} CPUs, {gpus:.0f} GPUs"
