"""Checks of a team's platform, as its runs meet it, each with what to do where it fails."""

import os
from importlib.metadata import version

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import WorkerStatus
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

from flows.services.doctor import Check
from flows.services.platform.declaration import Platform
from flows.services.platform.place_block import DEFAULT_NAME, VARIABLE, BertsmithPlace, read_place
from pipelines.core.redaction import redacted

_REFUSED = (401, 403)
_NEEDED = {  # by what a place names
    "a store on S3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "an MLflow server": ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"),
}


def check_prefect() -> Check:
    """The Prefect API answers, lets this person in, and is of the version that runs here."""
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
                "Prefect", "fail", f"{url} answers, and lets nobody in with what was brought",
                "set PREFECT_API_AUTH_STRING to the server's name:password",
            )  # fmt: skip
        finding = f"{url} answers with {error.response.status_code}"
        return Check("Prefect", "fail", finding, "look at the server's log, and at its database")
    except (httpx.HTTPError, OSError) as error:
        return Check(
            "Prefect", "fail", f"{url} does not answer ({type(error).__name__})",
            "start the server, or correct PREFECT_API_URL",
        )  # fmt: skip
    here = version("prefect")
    if there.split(".")[:2] != here.split(".")[:2]:
        advice = "bring the older of both up to date: servers first, then workers"
        return Check("Prefect", "warn", f"{url} is {there}, here it is {here}", advice)
    return Check("Prefect", "ok", f"{url}, version {there}")


def check_pools(platform: Platform) -> list[Check]:
    """Each declared work pool is there, takes runs, and has a worker that lives."""
    with get_client(sync_client=True) as client:
        return [_check_pool(client, pool.name) for pool in platform.work_pools]


def _check_pool(client: SyncPrefectClient, name: str) -> Check:
    try:
        pool = client.read_work_pool(name)
    except ObjectNotFound:
        return Check("work pool", "fail", f"{name} is not there", "make it: bertsmith deploy")
    if pool.is_paused:
        return Check("work pool", "warn", f"{name} is paused", "resume it on its page")
    workers = client.read_workers_for_work_pool(name)
    alive = [worker.name for worker in workers if worker.status == WorkerStatus.ONLINE]
    if not alive:
        return Check(
            "work pool", "fail", f"{name} has no worker that lives, of {len(workers)} known",
            f"start one: prefect worker start --pool {name}",
        )  # fmt: skip
    limit = pool.concurrency_limit or "any number of"
    return Check("work pool", "ok", f"{name}: {', '.join(alive)}; {limit} runs at once")


def check_secrets() -> Check:
    """What lets runs into store and tracker is in the block or in the environment.

    It tells names and never values, and not whether they are right: store and tracker do.
    """
    name = os.environ.get(VARIABLE) or DEFAULT_NAME
    place = read_place()
    said = place.variables() if isinstance(place, BertsmithPlace) else {}
    found = {**said, **{key: value for key, value in os.environ.items() if value}}
    wanted = []
    if found.get("BERTSMITH_STORE", "").startswith("s3://") and "AWS_PROFILE" not in found:
        wanted.append("a store on S3")
    if found.get("MLFLOW_TRACKING_URI", "").startswith("http"):
        wanted.append("an MLflow server")
    for what in wanted:
        missing = [key for key in _NEEDED[what] if key not in found]
        if missing:
            return Check(
                "secrets", "warn", f"{what} is named without {' and '.join(missing)}",
                f"type `bertsmith deploy` with these set, or fill the block bertsmith-place/{name} "
                "on its page; a machine that has rights of its own needs neither",
            )  # fmt: skip
    if not said:
        return Check(
            "secrets", "ok", f"no block bertsmith-place/{name}: runs have their worker's own"
        )
    return Check("secrets", "ok", f"the block bertsmith-place/{name} holds {', '.join(said)}")
