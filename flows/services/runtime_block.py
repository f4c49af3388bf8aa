"""Store, tracker, cluster and their credentials, kept by the Prefect server for its runs.

So recipes, deployments and logs hold none of them. A worker's own environment takes precedence over
the block, and a recipe over both.
"""

import os
from collections.abc import Mapping

from prefect.blocks.core import Block
from pydantic import Field, SecretStr

from pipelines.config.errors import UserError

VARIABLE = "BERTSMITH_RUNTIME"  # the name of the block that a worker's runs use
DEFAULT_NAME = "default"


class BertsmithRuntime(Block):
    """Store, tracker and cluster of deployments' runs, and their credentials.

    Each field is the environment variable of its name.
    """

    _block_type_name = "Bertsmith runtime"
    _block_type_slug = "bertsmith-runtime"
    _description = "Store, tracker, Ray cluster and their credentials, for runs of deployments."

    bertsmith_store: str = Field(default="", description="Such as s3://bucket/prefix.")
    mlflow_tracking_uri: str = Field(default="", description="Without user and password.")
    mlflow_tracking_username: str = ""
    mlflow_tracking_password: SecretStr = SecretStr("")
    ray_address: str = Field(default="", description="Empty: each run starts its own Ray.")
    aws_endpoint_url: str = Field(default="", description="URL of an S3 server that is not AWS.")
    aws_default_region: str = ""
    aws_access_key_id: str = ""
    aws_secret_access_key: SecretStr = SecretStr("")

    def variables(self) -> dict[str, str]:
        """Its values as environment variables, secrets included; empty ones are left out."""
        found = {name: getattr(self, name) for name in _FIELDS}
        plain = {
            name.upper(): value.get_secret_value() if isinstance(value, SecretStr) else value
            for name, value in found.items()
        }
        return {name: value for name, value in plain.items() if value}


_FIELDS = tuple(BertsmithRuntime.__annotations__)
# Variables that go together: a key of the environment is never used with a secret of the block.
_PAIRS = (
    ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"),
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
)


def use_runtime(block: BertsmithRuntime | None) -> None:
    """Set the variables of `block` that this process's environment does not have."""
    said = block.variables() if block is not None else {}
    for names in _PAIRS:
        if any(os.environ.get(name) for name in names):
            said = {name: value for name, value in said.items() if name not in names}
    for name, value in said.items():
        if not os.environ.get(name):
            os.environ[name] = value


def read_runtime() -> BertsmithRuntime | None:
    """The block of $BERTSMITH_RUNTIME, by default `default`; None if there is none.

    Raises UserError if the variable names one and it is not there.
    """
    name = os.environ.get(VARIABLE)
    found = _load(name or DEFAULT_NAME)
    if found is None and name:
        raise UserError(
            f"there is no Prefect block bertsmith-runtime/{name}, which ${VARIABLE} names; create "
            "it with `bertsmith deploy`, or correct the variable"
        )
    return found


def _load(name: str) -> BertsmithRuntime | None:
    try:
        found = BertsmithRuntime.load(name)
    except ValueError:  # there is no such block
        return None
    assert isinstance(found, BertsmithRuntime)
    return found


def save_runtime(environment: Mapping[str, str]) -> list[str]:
    """Update the block from `environment`; values that it does not have stay in the block.

    Returns the names of the variables that were given.
    """
    given = {name: value for name in _FIELDS if (value := environment.get(name.upper()))}
    if not given:
        return []
    known = _load(environment.get(VARIABLE) or DEFAULT_NAME)
    values = known.model_dump(include=set(_FIELDS)) if known is not None else {}
    BertsmithRuntime(**{**values, **given}).save(
        environment.get(VARIABLE) or DEFAULT_NAME, overwrite=True
    )
    return [name.upper() for name in given]
