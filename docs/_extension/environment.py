"""Every environment variable of ours, from the one list of them."""

from pipelines.settings import VARIABLES

from . import markdown


def page() -> str:
    """The reference of environment variables."""
    entries = (
        markdown.directive("envvar", name, markdown.text(meaning))
        for name, meaning in VARIABLES.items()
    )
    head = [
        "# Environment variables",
        "Bertsmith works without any of them. Variables of other programs (`PREFECT_…`, "
        "`MLFLOW_…`, `RAY_…`, `AWS_…`) keep their own meaning. This page is made from the code.",
    ]
    return "\n\n".join([*head, *entries]) + "\n"
