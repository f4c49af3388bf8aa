"""The command that checks the machine."""

import typer

from flows.cli.commands.services import MlflowPort, PrefectPort
from flows.cli.options import Home, Store
from flows.environment import home_folder, set_defaults


def add_to(app: typer.Typer) -> None:
    """Add this command to the application."""
    app.command()(doctor)


def doctor(
    home: Home = None,
    store: Store = None,
    prefect_port: PrefectPort = 4200,
    mlflow_port: MlflowPort = 5000,
) -> None:
    """Check installation, machine, ports, store and tracker, and say what to do.

    Ends with exit code 1 where something must be mended first.

    Example: bertsmith doctor
    """
    folder = home_folder(home)
    set_defaults(folder)
    from flows.services.doctor import checks
    from pipelines.core.place import PlaceSettings

    store_url = PlaceSettings(home=str(folder), store=store or "").store_url()
    failed = False
    for check in checks(folder, store_url, prefect_port, mlflow_port):
        result = check()
        failed = failed or result.state == "fail"
        print(f"{result.state:<5} {result.name:<10} {result.finding}", flush=True)
        if result.advice:
            print(f"{'':<16} -> {result.advice}")
    if failed:
        raise typer.Exit(code=1)
