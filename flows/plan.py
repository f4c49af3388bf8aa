"""What a run of a recipe would reuse and build, and why, without building anything."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from flows.chain import ENCODER, build_chain
from flows.progress import duration
from pipelines.errors import UserError
from pipelines.recipes.files import flattened
from pipelines.recipes.recipe import Recipe, Until
from pipelines.registry.find import REGISTERED
from pipelines.stage import Stage, StageContext, has_registry, open_tracker
from pipelines.stages import FINETUNING, STAGES
from pipelines.store import Artifact
from pipelines.store.lookup import LookupStore, NotBuiltError
from pipelines.store.store import Specification
from pipelines.tracking.tracker import Tracker

_MOST_SHOWN: Final = 3  # settings that differ
_OF_SEARCH: Final = ("tried", "num_seeds")


class PlannedStage(NamedTuple):
    """A stage of the chain, and what a run would do for it."""

    title: str
    outcome: str  # reused, continued or built
    reason: str


@dataclass(frozen=True, slots=True)
class _Missing:
    """In place of an artifact that would be built: what stands on it is built, too."""

    title: str
    fingerprint: str = ""


class _EncoderMissingError(LookupError):
    """The encoder to start from is not in the store, so that no stage's inputs are known."""


@dataclass(slots=True)
class Plan:
    """A chain whose stages are looked up; it stands where a `Run` does."""

    recipe: Recipe
    context: StageContext
    stages: list[PlannedStage] = field(default_factory=list)
    artifacts: dict[str, Artifact] = field(default_factory=dict)

    @property
    def tracker(self) -> Tracker:
        """The registry in which an encoder may be named."""
        return open_tracker(self.recipe.runtime)

    def build(self, stage: Stage, function: Callable[..., Artifact], *inputs: Any) -> Artifact:
        """The artifact of a stage, or what stands for one that is missing."""
        artifact: Artifact = self.stage(stage.title, function, *inputs, self.context)
        self.artifacts[stage.name] = artifact
        return artifact

    def stage(self, title: str, function: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
        """What `function` finds; a stage whose input is missing is missing itself."""
        missing = next((each for each in inputs if isinstance(each, _Missing)), None)
        if missing is not None:
            self.stages.append(PlannedStage(title, "built", f"new {missing.title}"))
            return cast(Artifact, _Missing(title))
        try:
            artifact: Artifact = function(*inputs, **options)
        except NotBuiltError as error:
            self.stages.append(
                _to_build(title, error.specification, cast(LookupStore, self.context.store))
            )
            if title == ENCODER:
                raise _EncoderMissingError from error
            return cast(Artifact, _Missing(title))
        described = STAGES.get(artifact.kind)
        headline = described.headline(artifact.statistics) if described else artifact.fingerprint
        self.stages.append(PlannedStage(title, "reused", headline))
        return artifact


def planned_stages(recipe: Recipe, until: Until) -> list[PlannedStage]:
    """What a run up to `until` would do for each stage that makes an artifact.

    No artifact and no database is written, and no local Ray starts. Raises UserError as the run
    would for inputs that cannot be read.
    """
    is_registered = any(name.startswith(REGISTERED) for name in recipe.named_encoders.values())
    if is_registered and not has_registry(recipe.runtime):  # opening it would create one
        raise UserError("there is no registry yet, so no encoder can be taken from it")
    store = LookupStore(recipe.runtime.store_url())
    plan = Plan(recipe, StageContext(store=store, runtime=recipe.runtime))
    try:
        build_chain(plan, until)
    except _EncoderMissingError:
        plan.stages.append(PlannedStage("all that follows", "built", "new encoder"))
    return plan.stages


def _to_build(title: str, specification: Specification, store: LookupStore) -> PlannedStage:
    alike = {}
    if specification.kind == FINETUNING.kind:  # the same from random weights is another stage
        alike["initialization"] = specification.settings["initialization"]
    newest = store.newest(specification.kind, alike)
    if store.has_draft(specification):
        return PlannedStage(title, "continued", "a run was interrupted")
    if newest is None:
        return PlannedStage(title, "built", "none in the store")
    before = f"the last one took {duration(newest.manifest.build_seconds)}"
    return PlannedStage(title, "built", "; ".join([*_reasons(specification, newest), before]))


def _reasons(specification: Specification, newest: Artifact) -> Iterator[str]:
    """How the newest artifact of the same kind differs."""
    manifest = newest.manifest
    if manifest.version != specification.version:
        yield f"format {specification.version} in place of {manifest.version}"
    settings = dict(_single_values(specification.settings))
    known = dict(_single_values(manifest.settings))
    is_search, was_search = "tried" in specification.settings, "tried" in manifest.settings
    if is_search and not was_search:
        yield "the best of several training runs in place of one"
        settings = {key: value for key, value in settings.items() if not key.startswith(_OF_SEARCH)}
    elif was_search and not is_search:
        yield "one training run in place of the best of several"
    shown = [
        f"{path}: {_shown(value)}, was {_shown(known.get(path))}"
        for path, value in settings.items()
        if _shown(value) != _shown(known.get(path))
    ]
    yield from shown[:_MOST_SHOWN]
    if len(shown) > _MOST_SHOWN:
        yield f"{len(shown) - _MOST_SHOWN} more settings"
    other = [
        name for name, value in specification.inputs.items() if manifest.inputs.get(name) != value
    ]
    if other:
        yield f"changed: {', '.join(other)}"


def _single_values(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of every single value, those of listed sections with their numbers."""
    for path, value in flattened(settings):
        if isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
            yield from _single_values({f"{path}.{n}": each for n, each in enumerate(value)})
        else:
            yield path, value


def _shown(value: Any) -> str:
    return "none" if value is None or value == "" else str(value)
