"""Commands for those who run a platform for others."""

from typing import Annotated

import typer

from flows.cli.options import Home, Store
from flows.environment import home_folder, set_defaults
from pipelines.core.errors import UserError

MetricsPort = Annotated[int, typer.Option(min=1, max=65535, help="Port to answer Prometheus on.")]
MetricsHost = Annotated[
    str | None,
    typer.Option(
        help="Address to listen on. [default: $BERTSMITH_METRICS_HOST, 127.0.0.1]",
        show_default=False,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command()(metrics)


def metrics(
    home: Home = None, store: Store = None, port: MetricsPort = 9464, host: MetricsHost = None
) -> None:
    """Serve the figures of this home's runs, of the store and of the queues to Prometheus.

    Where other machines may ask, $BERTSMITH_METRICS_TOKEN is what Prometheus has to bring.

    Example: bertsmith metrics --port 9464
    """
    folder = home_folder(home)
    set_defaults(folder)
    from flows.observability.exporter import exporter
    from flows.observability.serving import serving
    from pipelines.core.place import PlaceSettings

    store_url = PlaceSettings(home=str(folder), store=store or "").store_url()
    try:
        served = serving(exporter(folder, store_url), port=port, host=host or "")
    except OSError as error:
        raise UserError(
            f"port {port} must be free for the figures, found that it is not ({error.strerror}); "
            "choose another with --port"
        ) from error
    print(f"Figures of {folder} are at http://{served.host}:{served.port}/metrics; Ctrl-C ends it.")
    served.wait()
