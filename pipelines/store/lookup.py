"""A store that builds nothing: what would have to be built, and why."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel

from pipelines.store.artifact import Artifact
from pipelines.store.draft import Built, Draft
from pipelines.store.pruning import take_inventory
from pipelines.store.store import ArtifactStore, Wanted, wanted_artifact


class NotBuiltError(LookupError):
    """The store lacks an artifact, which a run would build."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(f"{wanted.kind}/{wanted.fingerprint} is not in the store")
        self.wanted = wanted


class LookupStore(ArtifactStore):
    """The artifacts of a store, for a plan: what is missing is not built.

    Raises UserError if the URL cannot be a store.
    """

    def get_or_build(
        self,
        kind: str,
        *,
        version: int,
        settings: BaseModel | Mapping[str, Any],
        inputs: Mapping[str, Artifact | str],
        build: Callable[[Draft], Built],
    ) -> Artifact:
        """The artifact that `settings` and `inputs` name; raises NotBuiltError without one."""
        wanted = wanted_artifact(kind, version, settings, inputs)
        artifact = self.find(kind, wanted.fingerprint)
        if artifact is None:
            raise NotBuiltError(wanted)
        return artifact

    def newest(self, kind: str) -> Artifact | None:
        """The artifact of this kind that was published last."""
        entries = [each for each in take_inventory(self) if each.kind == kind and each.manifest]
        return self.find(kind, entries[-1].fingerprint) if entries else None

    def has_draft(self, wanted: Wanted) -> bool:
        """Whether an interrupted build of the artifact has left work that a run goes on with."""
        draft = self._draft_folder(wanted.kind, wanted.fingerprint)
        return bool(self.filesystem.exists(draft))
