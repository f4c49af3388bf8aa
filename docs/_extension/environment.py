"""Every environment variable of ours: the one list of them, and its page."""

from . import markdown

VARIABLES = {
    "BERTSMITH_HOME": "folder of a local set-up: store, registry, logs; default .bertsmith",
    "BERTSMITH_STORE": "artifact store, a folder or s3://…; default the store of the home",
    "BERTSMITH_CACHE": "folder for copies of remote artifacts; default ~/.cache/bertsmith",
    "BERTSMITH_CACHE_BYTES": "how large the cache may grow; default 50 GiB",
    "BERTSMITH_MLFLOW_LOGIN": "http://user:password@host:port of the MLflow server that we serve",
    # Of the image, its composition and its manifests (infra/).
    "BERTSMITH_CREDENTIALS": "file of NAME=value lines that the image reads first",
    "BERTSMITH_RAY_HEAD": "host:port of a cluster that the image joins beside its command",
    "BERTSMITH_IMAGE": "the image of our roles",
    "BERTSMITH_LISTEN": "address that the composition's pages listen on; default 127.0.0.1",
}


def page() -> str:
    """The reference of environment variables."""
    entries = (
        markdown.directive("envvar", name, markdown.text(meaning))
        for name, meaning in VARIABLES.items()
    )
    head = [
        "# Environment variables",
        "Bertsmith works without any of them. Variables of other programs (`PREFECT_…`, "
        "`MLFLOW_…`, `RAY_…`, `AWS_…`) keep their own meaning.",
    ]
    return "\n\n".join([*head, *entries]) + "\n"
