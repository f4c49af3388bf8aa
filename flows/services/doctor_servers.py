"""Checks of Ray, store, tracker and Prefect as runs use them, each with advice if it fails."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from flows.services.doctor import Check, try_to_write
from pipelines.artifacts.access import nearest_existing
from pipelines.config.errors import UserError, first_line, redacted

if TYPE_CHECKING:  # importing Prefect takes seconds that a check without --platform need not spend
    from prefect.client.orchestration import SyncPrefectClient

    from flows.services.platform import Platform

_RAY_SECONDS = 180
_RAY_PROBE = """
import os, sys
from flows.services.doctor_servers import place_to_try
from pipelines.artifacts import ArtifactStore
from pipelines.cluster.connection import connect, disconnect, local_cpus, nodes
from pipelines.cluster.node_checks import check_nodes
from pipelines.config.errors import UserError
try:
    connect()
    check_nodes(ArtifactStore(place_to_try(sys.argv[1])))
except UserError as error:
    sys.exit(str(error))
found = nodes()
disconnect()
if os.environ.get("RAY_ADDRESS"):
    cpus, gpus = (sum(node.get(kind, 0) for node in found) for kind in ("CPU", "GPU"))
    print(f"{len(found)} nodes with the versions of this process, which see the store: "
          f"{cpus:.0f} CPUs, {gpus:.0f} GPUs")
else:
    print(local_cpus(), "CPUs here")
"""
_RAY_ADVICE = "unset RAY_ADDRESS, or look into /tmp/ray/session_latest/logs"
_REFUSED = (401, 403)


def check_ray(store_url: str) -> Check:
    """Ray starts, or every node of the cluster that RAY_ADDRESS names can take part.

    A process of its own tries it, and compares versions and access to the store.
    """
    address = os.environ.get("RAY_ADDRESS")
    try:
        completed = subprocess.run(
            [sys.executable, "-c", _RAY_PROBE, store_url],
            capture_output=True,
            text=True,
            timeout=_RAY_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Check("Ray", "fail", f"did not answer within {_RAY_SECONDS} s", _RAY_ADVICE)
    if completed.returncode != 0:
        said = completed.stderr.strip().splitlines() or ["it ended without a message"]
        return Check("Ray", "fail", said[-1], _RAY_ADVICE)
    found = completed.stdout.strip()
    if not address and " " in sys.prefix:  # ray_client_server cuts the interpreter's path there
        return Check(
            "Ray",
            "warn",
            f"starts, {found}; `ray start --head` would end at once: a space in {sys.prefix}",
            "to start a cluster here, install into a folder whose path has no space",
        )
    return Check("Ray", "ok", f"joined {address}, {found}" if address else f"starts, {found}")


def check_store(url: str) -> Check:
    """The artifact store can be written and read, and supports conditional writes."""
    from pipelines.artifacts import ArtifactStore
    from pipelines.artifacts.access import create_only, store_errors_explained

    shown = redacted(url)
    try:
        store = ArtifactStore(place_to_try(url), is_patient=False)
        probe = f"{store.root}/.doctor-{os.getpid()}"
        with store_errors_explained(url):
            first = create_only(store.filesystem, probe, b"probe")
            second = create_only(store.filesystem, probe, b"another")
            is_kept = first and not second and store.filesystem.cat_file(probe) == b"probe"
            store.filesystem.rm(probe)
    except (OSError, ValueError, ImportError) as error:
        said = redacted(f"{shown}: {first_line(error)}")
        return Check("store", "fail", said, "choose one with --store")
    if not is_kept:
        return Check(
            "store", "warn", f"{shown} has no conditional writes (If-None-Match)",
            "run one builder of an artifact at a time, or choose a store with conditional writes",
        )  # fmt: skip
    return Check("store", "ok", shown)


def check_tracker() -> Check:
    """The MLflow tracker and its registry answer, or a run can create the home's own."""
    from pipelines.config.runtime import DATABASE_NAME, RuntimeSettings
    from pipelines.recipes.connections import has_registry, open_tracker

    runtime = RuntimeSettings()
    home = runtime.home_folder()
    try:
        if not has_registry(runtime):
            try_to_write(home)
            return Check("tracker", "ok", f"sqlite:///{home / DATABASE_NAME}, made by a run")
        tracker = open_tracker(runtime)
        tracker.experiment_id()
    except UserError as error:
        advice = "start it, or unset MLFLOW_TRACKING_URI"
        return Check("tracker", "fail", first_line(error), advice)
    return _compared("tracker", tracker.shown_uri, tracker.server_version(), version("mlflow"))


def check_prefect() -> Check:
    """The Prefect API answers, accepts the credentials, and has the version that runs here."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError

    url = redacted(os.environ.get("PREFECT_API_URL", ""))
    if not url:
        return Check(
            "Prefect", "fail", "no PREFECT_API_URL names a server",
            "set it to the team's, with PREFECT_API_AUTH_STRING",
        )  # fmt: skip
    try:
        with get_client(sync_client=True) as client:
            client.read_work_pools(limit=1)
            there = client.api_version()
    except PrefectHTTPStatusError as error:
        if error.response.status_code in _REFUSED:
            return Check(
                "Prefect", "fail", f"{url} answers, but rejects the name and password",
                "set PREFECT_API_AUTH_STRING to the server's name:password",
            )  # fmt: skip
        finding = f"{url} answers with {error.response.status_code}"
        return Check("Prefect", "fail", finding, "look at the server's log, and at its database")
    except (httpx.HTTPError, OSError) as error:
        return Check(
            "Prefect", "fail", f"{url} does not answer ({type(error).__name__})",
            "start the server, or correct PREFECT_API_URL",
        )  # fmt: skip
    return _compared("Prefect", url, there, version("prefect"))


def require_prefect() -> None:
    """Raise UserError if the configured Prefect API does not answer or rejects the credentials."""
    found = check_prefect()
    if found.state == "fail":
        raise UserError(f"Prefect: {found.finding}; {found.advice}")


def _compared(name: str, url: str, there: str | None, here: str) -> Check:
    """Compare the version of a server that answers with the one that runs here."""
    if there and there.split(".")[:2] != here.split(".")[:2]:
        advice = "upgrade the older of both: servers first, then workers"
        return Check(name, "warn", f"{url} is {there}, here it is {here}", advice)
    return Check(name, "ok", f"{url}, version {there}" if there else url)


def check_pools(platform: "Platform") -> list[Check]:
    """Each declared work pool exists, is not paused, and has a live worker."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return [_check_pool(client, pool.name) for pool in platform.work_pools]


def _check_pool(client: "SyncPrefectClient", name: str) -> Check:
    from prefect.client.schemas.objects import WorkerStatus
    from prefect.exceptions import ObjectNotFound

    try:
        pool = client.read_work_pool(name)
    except ObjectNotFound:
        return Check("work pool", "fail", f"{name} does not exist", "create it: bertsmith deploy")
    if pool.is_paused:
        return Check("work pool", "warn", f"{name} is paused", "resume it on its page")
    workers = client.read_workers_for_work_pool(name)
    alive = [worker.name for worker in workers if worker.status == WorkerStatus.ONLINE]
    if not alive:
        return Check(
            "work pool", "fail", f"{name} has no live worker, of {len(workers)} known",
            f"start one: prefect worker start --pool {name}",
        )  # fmt: skip
    limit = pool.concurrency_limit or "any number of"
    return Check("work pool", "ok", f"{name}: {', '.join(alive)}; {limit} runs at once")


def check_secrets() -> Check:
    """Credentials for store and tracker are in the block or in the environment.

    Only names are shown. Whether the values are right, the checks of store and tracker show.
    """
    from flows.services.runtime_block import DEFAULT_NAME, VARIABLE, read_runtime

    name = os.environ.get(VARIABLE) or DEFAULT_NAME
    try:
        block = read_runtime()
    except UserError as error:
        return Check("secrets", "fail", str(error))
    said = block.variables() if block is not None else {}
    found = {**said, **{key: value for key, value in os.environ.items() if value}}
    needed = []
    if found.get("BERTSMITH_STORE", "").startswith("s3://") and "AWS_PROFILE" not in found:
        needed += ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
    if found.get("MLFLOW_TRACKING_URI", "").startswith("http"):
        needed += ["MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"]
    missing = [key for key in needed if key not in found]
    if missing:
        return Check(
            "secrets", "warn", f"store or tracker is named without {' and '.join(missing)}",
            f"type `bertsmith deploy` with these set, or fill the block bertsmith-runtime/{name} "
            "on its page; a machine with its own access rights needs neither",
        )  # fmt: skip
    if not said:
        return Check(
            "secrets", "ok", f"no block bertsmith-runtime/{name}: runs have their worker's own"
        )
    return Check("secrets", "ok", f"the block bertsmith-runtime/{name} holds {', '.join(said)}")


def place_to_try(store_url: str) -> str:
    """Where to test a store: for a missing local one, its nearest existing parent folder.

    Raises UserError if the URL cannot be a store.
    """
    from pipelines.artifacts import ArtifactStore

    store = ArtifactStore(store_url, is_patient=False)
    return str(nearest_existing(Path(store.root))) if store.is_local else store_url
