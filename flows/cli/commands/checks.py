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
    bool, typer.Option("--platform", help="Check a team's servers, as runs of deployments do.")
]


def add_to(app: typer.Typer) -> None:
    """Add this command to the application."""
    app.command()(doctor)


def doctor(
    home: Home = None,
    store: Store = None,
    prefect_port: PrefectPort = 4200,
    mlflow_port: MlflowPort = 5000,
    platform: Platform = False,
) -> None:
    """Check installation, machine, ports, store and tracker, and say what to do.

    With --platform also what runs of deployments find: the Prefect server of PREFECT_API_URL, work
    pools with live workers, secrets; and store, tracker and cluster as its block names them. Ends
    with exit code 1 where something must be mended first.

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
    """Quick checks first."""
    from flows.services import doctor, doctor_servers
    from pipelines.core.place import PlaceSettings

    if platform:
        yield from _platform_results()
    store_url = PlaceSettings(home=str(home), store=store or "").store_url()
    yield doctor.check_python()
    yield doctor.check_packages()
    yield doctor.check_processor()
    yield doctor.check_memory()
    yield doctor.check_disk(home)
    yield doctor.check_servers(home, prefect_port, mlflow_port)
    yield doctor_servers.check_store(store_url)
    yield doctor_servers.check_tracker()
    yield doctor_servers.check_ray(store_url)


def _platform_results() -> Iterator["Check"]:
    from flows.services.doctor_servers import check_pools, check_prefect, check_secrets
    from flows.services.place_block import read_place, use_place
    from flows.services.platform import read_platform

    prefect = check_prefect()
    yield prefect
    if prefect.state == "fail":
        return  # what only it knows
    yield from check_pools(read_platform())
    yield check_secrets()
    use_place(read_place())
