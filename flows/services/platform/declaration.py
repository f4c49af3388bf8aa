"""What infra/platform.yaml declares: work pools by kind of work, and automations."""

from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, model_validator

from flows.services.declared_files import declared_file
from pipelines.core.settings import Settings

_Seconds = Annotated[int, Field(ge=1)]


class WorkPool(Settings):
    """Where deployments with one of these tags run."""

    name: str
    description: str = ""
    tags: tuple[str, ...] = Field(min_length=1)
    concurrency_limit: int | None = Field(default=None, ge=1)


class When(Settings):
    """What happens, or is missing, before an automation acts."""

    expect: tuple[str, ...] = Field(min_length=1)
    after: tuple[str, ...] = ()
    tag: str = ""  # of the runs it looks at
    match: dict[str, str] = Field(default_factory=dict)  # labels of the event's resource
    silent_seconds: _Seconds | None = None  # act where `expect` does not come for so long


class Automation(Settings):
    """One rule: when, and what follows."""

    name: str
    description: str = ""
    enabled: bool = True  # when it is made; from then on its page says
    when: When
    notify: str = ""  # what is said
    run: str = ""  # the deployment that is run
    crash: str = ""  # why the run that it is about is called crashed

    @model_validator(mode="after")
    def _does_one_thing(self) -> "Automation":
        said = [name for name in ("notify", "run", "crash") if getattr(self, name)]
        if len(said) != 1:
            found = " and ".join(said) or "none of them"
            raise ValueError(f"an automation must say one of notify, run and crash, found {found}")
        return self


class Platform(Settings):
    """All of it."""

    work_pools: tuple[WorkPool, ...]
    automations: tuple[Automation, ...] = ()

    def pool_of(self, tags: list[str]) -> str:
        """The name of the pool for a deployment with these tags. Raises KeyError without one."""
        for pool in self.work_pools:
            if set(pool.tags) & set(tags):
                return pool.name
        raise KeyError(f"no work pool takes a deployment with the tags {tags}")


def read_platform(path: Path | None = None) -> Platform:
    """What `path` declares, by default the file that comes with Bertsmith."""
    text = (path or declared_file("platform.yaml")).read_text(encoding="utf-8")
    return Platform.model_validate(yaml.safe_load(text))
