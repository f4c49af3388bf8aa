"""A store that builds nothing: what would have to be built, and why."""

from collections.abc import Callable, Mapping
from typing import Any

from pipelines.store.artifact import Artifact
from pipelines.store.draft import Built, Draft
from pipelines.store.pruning import take_inventory
from pipelines.store.store import ArtifactStore, Specification


class NotBuiltError(LookupError):
    """The store lacks an artifact, which a run would build."""

    def __init__(self, specification: Specification) -> None:
        super().__init__(f"{specification.kind}/{specification.fingerprint} is not in the store")
        self.specification = specification


class LookupStore(ArtifactStore):
    """The artifacts of a store, for a plan: `get_or_build` raises NotBuiltError without one.

    Raises UserError if the URL cannot be a store.
    """

    def _build(self, specification: Specification, build: Callable[[Draft], Built]) -> Artifact:
        raise NotBuiltError(specification)

    def newest(self, kind: str, alike: Mapping[str, Any]) -> Artifact | None:
        """The artifact of this kind that was published last, of those with the settings `alike`."""
        entries = [
            each
            for each in take_inventory(self)
            if each.kind == kind
            and each.manifest
            and alike.items() <= each.manifest.settings.items()
        ]
        return self.find(kind, entries[-1].fingerprint) if entries else None

    def has_draft(self, specification: Specification) -> bool:
        """Whether an interrupted build of the artifact has left work that a run goes on with."""
        folder = self._draft_folder(specification.kind, specification.fingerprint)
        return bool(self.filesystem.exists(folder))
