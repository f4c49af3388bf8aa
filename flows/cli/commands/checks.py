"""The command that checks the machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.commands.services import MlflowPort, PrefectPort
from flows.cli.options import Home, Store
from flows.environment import home_folder, set_defaults

if TYPE_CHECKING:  # importing it takes a moment that help need not spend
    from flows.services.doctor import Check

Platform = Annotated[
    bool, typer.Option("--platform", help="Also check the team's servers, as deployments use them.")
]


def doctor(
    home: Home = None,
    store: Store = None,
    prefect_port: PrefectPort = 4200,
    mlflow_port: MlflowPort = 5000,
    platform: Platform = False,
) -> None:
    """Check the installation and say what to fix.

    Machine, ports, store and tracker. With --platform also what deployments need: the Prefect
    server of PREFECT_API_URL, work pools with live workers, secrets, and store, tracker and cluster
    as the server's block names them. Exit code 1 if something has to be fixed first.

    Example: bertsmith doctor --platform
    """
    folder = home_folder(home)
    set_defaults(folder)
    failed = False
    for result in _results(folder, store, prefect_port, mlflow_port, platform):
        failed = failed or result.state == "fail"
        print(f"{result.state:<5} {result.name:<10} {result.finding}", flush=True)
        if result.advice:
            print(f"{'':<16} -> {result.advice}")
    if failed:
        raise typer.Exit(code=1)


def _results(
    home: Path, store: str | None, prefect_port: int, mlflow_port: int, platform: bool
) -> Iterator["Check"]:
    from flows.services.doctor import checks
    from pipelines.core.place import PlaceSettings

    if platform:
        yield from _platform_results()
    store_url = PlaceSettings(home=str(home), store=store or "").store_url()
    for check in checks(home, store_url, prefect_port, mlflow_port):
        yield check()


def _platform_results() -> Iterator["Check"]:
    from flows.services.platform.checks import check_pools, check_prefect, check_secrets
    from flows.services.platform.declaration import read_platform
    from flows.services.platform.place_block import read_place, use_place

    prefect = check_prefect()
    yield prefect
    if prefect.state == "fail":
        return  # what only it knows
    yield from check_pools(read_platform())
    yield check_secrets()
    use_place(read_place())
