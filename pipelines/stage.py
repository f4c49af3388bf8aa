"""What a stage is: how it is declared, and what it is given beside settings and inputs."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipelines.artifacts import ArtifactStore
from pipelines.config.runtime import RuntimeSettings

if TYPE_CHECKING:
    from pipelines.config.settings import Settings
    from pipelines.tracking.tracker import Tracker
    # importing MLflow takes a second that data workers need not spend

Statistics = Mapping[str, Any]


def _always(settings: Any) -> bool:
    return True


def _no_variants(settings: Any) -> Mapping[str, Mapping[str, Any]]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One link of the chain. Task, flow, command, deployment and report derive from it.

    It is declared in its folder's `__init__`, which imports nothing heavy: `build`, `check` and
    `cut` are named as `module:function` and imported when they are first called.
    """

    name: str  # of its folder
    section: str  # of the recipe; empty where it has no settings
    title: str  # what a person reads
    command: str  # that builds it and what it needs; its flow and deployment have the same name
    purpose: str  # one sentence
    example: str  # of the command
    kind: str  # of its artifact
    version: int  # raise when the same settings and inputs would give other bytes
    needs: tuple[str, ...] = ()  # stages whose artifacts it takes, in the order of its arguments
    build: str  # build(settings, *artifacts, context), without settings where it has no section
    # check(settings, *what the checks of its needs returned): refuses what the recipe names and
    # cannot be read, before anything is built.
    check: str = ""
    # cut(settings): how workers share a step of its training run; None where nothing is shared.
    cut: str = ""
    uses_network: bool = False  # to sources or servers, which may fail and come back
    # Whether settings ask for it at all; where not, what needs it is left out as well.
    is_wanted: Callable[[Any], bool] = _always
    # More artifacts of the same settings, by title: further arguments of `build`.
    variants: Callable[[Any], Mapping[str, Mapping[str, Any]]] = _no_variants
    headline: Callable[[Statistics], str]  # the one count or figure that says most

    def settings_of(self, recipe: "Settings") -> Any:
        """Its section of `recipe`; None where it has none."""
        return getattr(recipe, self.section) if self.section else None

    def builder(self) -> Callable[..., Any]:
        """The function that `build` names."""
        return _imported(self.build)

    def inspected(self, recipe: "Settings", earlier: Mapping[str, Any]) -> Any:
        """What a look at the inputs that `recipe` names for this stage tells; None without a check.

        `earlier` are the results of stages before it, by name. Raises UserError where an input
        cannot be read or cannot be enough.
        """
        if not self.check:
            return None
        return _imported(self.check)(self.settings_of(recipe), *map(earlier.get, self.needs))

    def cut_of(self, recipe: "Settings") -> Any:
        """How a step of its training run is shared among workers; None where nothing is shared."""
        return _imported(self.cut)(self.settings_of(recipe)) if self.cut else None


def _imported(reference: str) -> Callable[..., Any]:
    module, _, name = reference.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a stage has come, for whoever watches: a terminal, a log, the Prefect page."""

    stage: str
    done: float
    total: float
    unit: str
    figures: Mapping[str, float | str] = field(default_factory=dict)
    note: str = ""  # a sentence worth a line of the log, such as "resumed from step 120"
    seconds_left: float | None = None  # where the stage knows better than its rate so far tells

    @property
    def fraction(self) -> float:
        """Share of the work done, between 0 and 1; 0 where the total is not known yet."""
        return min(1.0, self.done / self.total) if self.total > 0 else 0.0


Observer = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Watch nothing."""


def send_note(observe: Observer, stage: str, note: str) -> None:
    """Send a sentence for the log, without any progress."""
    observe(Progress(stage=stage, done=0, total=0, unit="steps", note=note))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """The surroundings of a stage; none of them changes a byte of what it makes."""

    store: ArtifactStore
    # by default a single worker of each kind
    runtime: RuntimeSettings = field(
        default_factory=lambda: RuntimeSettings(num_workers=1, training_workers=1)
    )
    observe: Observer = ignore
    tracker: "Tracker | None" = None  # stages that train record their runs there

    def watch(
        self, stage: str, unit: str, total: int, *, done: int = 0, **figures: str
    ) -> Callable[[int, Any], None]:
        """For `map_tasks`: tells the observer of each result, one more than `done` of `total`."""
        counter = itertools.count(done + 1)

        def on_result(index: int, result: Any) -> None:
            number = next(counter)
            self.observe(
                Progress(
                    stage=stage, done=number, total=max(total, number), unit=unit, figures=figures
                )
            )

        return on_result
