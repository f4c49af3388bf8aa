"""What a person says of a promotion or a rollback; read before Prefect is imported."""

from pydantic import Field

from pipelines.config.settings import Settings
from pipelines.recipes.registration import Alias
from pipelines.recipes.runtime import RuntimeSettings


class AliasRecipe(Settings):
    """Which alias of a registered model is moved, and why."""

    runtime: RuntimeSettings = Field(
        default_factory=RuntimeSettings, description="Where the registry is."
    )
    name: str = Field(
        default="bertsmith-encoder", min_length=1, description="Registered name of the model."
    )
    alias: Alias = Field(default="champion", description="The alias that moves.")
    reason: str = Field(default="", description="Why, for the history.")
    who: str = Field(default="", description="Who wants it so; empty: who runs the flow.")


class PromotionRecipe(AliasRecipe):
    """Which version of a registered model gets which alias."""

    source: str = Field(
        default="candidate",
        min_length=1,
        description="The version to promote: an alias it has now, or its number.",
    )
    force: bool = Field(
        default=False,
        description="Promote it although what is on record says that it is not better than the "
        "version that has the alias.",
    )


class RollbackRecipe(AliasRecipe):
    """Which alias goes back to the version that had it before."""
