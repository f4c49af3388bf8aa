"""The command that puts a model behind HTTP."""

import socket
from typing import Annotated, Literal

import typer

from flows.cli.commands.predict import kinds_of
from flows.cli.registry import Home, asked_model, model_address, say
from pipelines.config.errors import UserError


def serve(
    model: Annotated[
        str | None,
        typer.Argument(
            help="name, name@alias, name/version, a fingerprint of the store or a folder. "
            "[default: the newest champion of any task]",
            show_default=False,
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 5001,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Nobody is asked for a password.")
    ] = "127.0.0.1",
    queue: Annotated[
        int, typer.Option(min=1, help="Requests that may wait; further ones get status 503.")
    ] = 64,
    precision: Annotated[
        Literal["float32", "bf16", "auto"],
        typer.Option(
            help="float32: as the version was verified; bf16: faster on CPUs that multiply it; "
            "auto: bf16 on those."
        ),
    ] = "float32",
    home: Home = None,
) -> None:
    """Answer HTTP requests with a model of any task.

    POST /invocations takes and gives what `mlflow models serve` does; /health and /metrics answer
    GET. Requests that come at the same time are answered in one batch.

    Example: bertsmith serve bertsmith-classifier@champion --port 5001
    """
    kinds = () if model else kinds_of(None)
    with bound_socket(host, port) as at, asked_model(model, home, *kinds) as (folder, called):
        from pipelines.inference.server import serve as answer_requests
        from pipelines.registry.opening import opened

        address = f"http://{host}:{at.getsockname()[1]}/invocations"
        answer_requests(
            opened(folder), model_address(called), at, queue,
            ready=lambda: say(f"{address} answers; Ctrl-C ends it"), precision=precision,
        )  # fmt: skip


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket at this address, where nobody listens yet: clients come once there are answers."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another with --port or "
            "--host"
        ) from error
    return bound
