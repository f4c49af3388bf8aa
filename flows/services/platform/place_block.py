"""Store, tracker, cluster and their credentials, kept by the Prefect server for its runs.

A recipe, a deployment and a log then hold none of them. What a worker has in its own environment
goes before the block, and what a recipe names goes before both.
"""

import os
from collections.abc import Mapping

from prefect.blocks.core import Block
from prefect.runtime import deployment
from pydantic import Field, SecretStr

VARIABLE = "BERTSMITH_PLACE"  # the name of the block that a worker's runs use
DEFAULT_NAME = "default"


class BertsmithPlace(Block):
    """Where runs of deployments keep their results and compute, and what lets them in."""

    _block_type_name = "Bertsmith place"
    _block_type_slug = "bertsmith-place"
    _description = "Store, tracker, Ray cluster and their credentials, for runs of deployments."

    store: str = Field(default="", description="Artifact store, such as s3://bucket/prefix.")
    tracking_uri: str = Field(default="", description="MLflow server, without user and password.")
    tracking_username: str = Field(default="", description="User of the MLflow server.")
    tracking_password: SecretStr = Field(default=SecretStr(""), description="And the password.")
    ray_address: str = Field(default="", description="Ray cluster; empty: each run starts its own.")
    store_endpoint: str = Field(default="", description="URL of an S3 server that is not AWS.")
    store_region: str = Field(default="", description="Region of the bucket.")
    store_access_key: str = Field(default="", description="Access key of the store.")
    store_secret_key: SecretStr = Field(default=SecretStr(""), description="And the secret key.")

    def variables(self) -> dict[str, str]:
        """What it says as environment variables, by their usual names; what is empty is left out.

        The values hold secrets.
        """
        values = {name: getattr(self, field) for field, name in _VARIABLES.items()}
        plain = {
            name: value.get_secret_value() if isinstance(value, SecretStr) else value
            for name, value in values.items()
        }
        return {name: value for name, value in plain.items() if value}


_VARIABLES = {
    "store": "BERTSMITH_STORE",
    "tracking_uri": "MLFLOW_TRACKING_URI",
    "tracking_username": "MLFLOW_TRACKING_USERNAME",
    "tracking_password": "MLFLOW_TRACKING_PASSWORD",
    "ray_address": "RAY_ADDRESS",
    "store_endpoint": "AWS_ENDPOINT_URL",
    "store_region": "AWS_DEFAULT_REGION",
    "store_access_key": "AWS_ACCESS_KEY_ID",
    "store_secret_key": "AWS_SECRET_ACCESS_KEY",
}
# What belongs together: a key of the environment is never used with a secret of the block.
_PAIRS = (
    ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"),
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
)


def use_place_of_deployment() -> None:
    """Give a deployment's run what the block says and its environment does not.

    Nothing happens where the server has no such block, nor in a run that a person started here.
    """
    if deployment.id is not None:
        use_place(read_place())


def use_place(place: "BertsmithPlace | None") -> None:
    """Give this process what `place` says and its environment does not."""
    if place is None:
        return
    said = place.variables()
    for names in _PAIRS:
        if any(os.environ.get(name) for name in names):
            said = {name: value for name, value in said.items() if name not in names}
    for name, value in said.items():
        if not os.environ.get(name):
            os.environ[name] = value


def read_place() -> BertsmithPlace | None:
    """The block of $BERTSMITH_PLACE, by default `default`; None where there is none."""
    try:
        found = BertsmithPlace.load(os.environ.get(VARIABLE) or DEFAULT_NAME)
    except ValueError:  # Prefect's answer where there is no such block
        return None
    assert isinstance(found, BertsmithPlace)
    return found


def save_place(environment: Mapping[str, str]) -> list[str]:
    """Keep what `environment` says in the block; what it does not say stays as it is there.

    Returns the names of what was given, none of it where nothing was.
    """
    given = {
        field: environment[name] for field, name in _VARIABLES.items() if environment.get(name)
    }
    if not given:
        return []
    known = read_place()
    values = known.model_dump(include=set(_VARIABLES)) if known is not None else {}
    BertsmithPlace(**{**values, **given}).save(
        environment.get(VARIABLE) or DEFAULT_NAME, overwrite=True
    )
    return [_VARIABLES[field] for field in given]
