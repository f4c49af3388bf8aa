"""The five checks of `bertsmith doctor`, each with what to do if it fails."""

import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import httpx
from packaging.requirements import Requirement

from pipelines.errors import UserError, first_line, redacted
from pipelines.settings import RuntimeSettings


@dataclass(frozen=True, slots=True)
class Check:
    """What a check showed, and what to do if it failed."""

    name: str
    is_good: bool
    result: str
    remedy: str = ""


def checks(runtime: RuntimeSettings, home: Path) -> Iterator[Check]:
    """All of them, quick ones first."""
    yield check_packages()
    yield check_store(runtime)
    yield check_tracker(runtime)
    yield check_prefect_of(home)
    yield check_ray(runtime)


def check_packages() -> Check:
    """This Python has every required package in a version that works."""
    here = f"{platform.python_version()} at {sys.executable}"
    wrong = [
        sentence
        for line in requires("bertsmith") or []
        if (sentence := _complaint(Requirement(line)))
    ]
    if wrong:
        remedy = "install again: pip install -c constraints.txt bertsmith"
        return Check("Python", False, f"{here}: {'; '.join(wrong)}", remedy)
    return Check("Python", True, f"{here}, with all packages in versions that work together")


def _complaint(requirement: Requirement) -> str:
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return ""
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        return f"{requirement.name} is missing"
    if requirement.specifier.contains(installed, prereleases=True):
        return ""
    return f"{requirement.name} is {installed}, required is {requirement.specifier}"


def check_store(runtime: RuntimeSettings) -> Check:
    """The artifact store can be written and read, and creates a file only if there is none."""
    from pipelines.store import ArtifactStore
    from pipelines.store.access import create_only, store_errors_explained

    url = runtime.store_url()
    try:
        store = ArtifactStore(url, is_patient=False)
        probe = f"{store.root}/.doctor-{os.getpid()}"
        with store_errors_explained(url):
            store.filesystem.makedirs(store.root, exist_ok=True)
            first = create_only(store.filesystem, probe, b"probe")
            is_kept = first and not create_only(store.filesystem, probe, b"another")
            store.filesystem.rm(probe)
    except (OSError, ValueError, ImportError) as error:
        return Check(
            "store", False, redacted(f"{url}: {first_line(error)}"),
            "choose another with --store or $BERTSMITH_STORE",
        )  # fmt: skip
    if not is_kept:
        return Check(
            "store", False, f"{redacted(url)} has no conditional writes (If-None-Match)",
            "choose a store that has them",
        )  # fmt: skip
    return Check("store", True, redacted(url))


def check_tracker(runtime: RuntimeSettings) -> Check:
    """The MLflow tracker answers; a home's own is made by a run."""
    from pipelines import stage

    try:
        stage.check_tracker(runtime)
        if not stage.has_registry(runtime):
            return Check("tracker", True, f"none yet: a run makes it in {runtime.home_folder()}")
        tracker = stage.open_tracker(runtime)
        tracker.experiment_id()
    except UserError as error:
        named = "correct MLFLOW_TRACKING_URI, or unset it"
        remedy = named if runtime.named_tracker() else "choose another --home"
        return Check("tracker", False, first_line(error), remedy)
    return Check("tracker", True, tracker.shown_uri)


def check_prefect_of(home: Path) -> Check:
    """The Prefect API that flows of this home would use answers."""
    from flows.environment import prepare_flows

    try:
        prepare_flows(home)()
    except UserError as error:
        return Check("Prefect", False, first_line(error), "correct Prefect's settings")
    return check_prefect()


def check_prefect() -> Check:
    """The Prefect API answers and accepts the password."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError
    from prefect.settings import get_current_settings

    url = redacted(get_current_settings().api.url or "")
    try:
        with get_client(sync_client=True) as client:
            client.read_deployments(limit=1)
    except PrefectHTTPStatusError as error:
        if error.response.status_code in (401, 403):
            return Check(
                "Prefect", False, f"{url} answers, but rejects the name and password",
                "set PREFECT_API_AUTH_STRING to the server's name:password",
            )  # fmt: skip
        result = f"{url} answers with {error.response.status_code}"
        return Check("Prefect", False, result, "look at the server's log, and at its database")
    except (httpx.HTTPError, OSError) as error:
        return Check(
            "Prefect", False, f"{url} does not answer ({type(error).__name__})",
            "start the server, or correct PREFECT_API_URL",
        )  # fmt: skip
    return Check("Prefect", True, url)


def check_ray(runtime: RuntimeSettings) -> Check:
    """Ray starts here, or every node of the cluster that RAY_ADDRESS names can take part."""
    from pipelines.cluster import connect, disconnect, nodes
    from pipelines.stage import check_nodes

    address = os.environ.get("RAY_ADDRESS")
    try:
        connect()
        check_nodes(runtime)
        resources = nodes()
    except UserError as error:
        return Check("Ray", False, first_line(error), "start the cluster, or unset RAY_ADDRESS")
    finally:
        disconnect()
    cpus, gpus = (sum(node.get(kind, 0) for node in resources) for kind in ("CPU", "GPU"))
    where = f"{len(resources)} nodes at {address}" if address else "starts on this machine"
    return Check("Ray", True, f"{where}: {cpus:.0f} CPUs, {gpus:.0f} GPUs")
