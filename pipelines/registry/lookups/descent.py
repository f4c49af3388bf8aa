"""What a version was made from, down to files and settings: a tree of artifacts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mlflow.entities.model_registry import ModelVersion

from pipelines.artifacts import Artifact, ArtifactStore
from pipelines.artifacts.layout import is_fingerprint
from pipelines.core.recipes.files import differences, flattened
from pipelines.core.recipes.ladder import EndToEndRecipe
from pipelines.core.tracking.tracker import FINGERPRINT_TAG, Tracker
from pipelines.registry.card import headline
from pipelines.registry.lookups.finding import find_model
from pipelines.registry.tags import CODE_TAG, DIGEST_TAG, JUDGEMENT_TAG, KIND_TAG, PROOF_TAG
from pipelines.stages import CHAIN
from pipelines.training.starting import IMPORTED

_STAGES = {stage.kind: stage for stage in CHAIN}
_KINDS = (*_STAGES, "imported_encoder", IMPORTED)
_OF_VERSION = {
    "kind": KIND_TAG, "score": f"{PROOF_TAG}.reproduced", "of": f"{PROOF_TAG}.metric",
    "comparison": f"{JUDGEMENT_TAG}.reason", "code": CODE_TAG, "digest": DIGEST_TAG,
    "flow run": "bertsmith.flow_run", "recipe": "bertsmith.recipe",
}  # fmt: skip
_SHOWN_FILES = 8
_SAID = ("format", "heldout_format", "libraries")  # inputs that are no bytes but how they are read


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """One thing that a version stands on: an artifact, or bytes that came from outside."""

    title: str
    fingerprint: str  # of the artifact, or what its bytes hash to
    facts: Mapping[str, str]  # what is worth knowing of it
    settings: Mapping[str, Any]  # all of them, by dotted path
    changed: Mapping[str, Any]  # those that are not the default
    origins: tuple["Origin", ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON, whole."""
        return {
            "title": self.title,
            "fingerprint": self.fingerprint,
            "facts": dict(self.facts),
            "settings": dict(self.settings),
            "from": [origin.to_json() for origin in self.origins],
        }


def descent_of(tracker: Tracker, store: ArtifactStore, reference: str) -> Origin:
    """The tree below the version that `reference` names.

    What the store no longer holds ends its branch, and the tree says so. Raises UserError where
    there is no such version or the store does not answer, MlflowException where the tracker does
    not.
    """
    client = tracker.client()
    version = find_model(client, reference)
    aliases = [
        alias
        for alias, number in client.get_registered_model(version.name).aliases.items()
        if str(number) == str(version.version)
    ]
    facts = {name: version.tags[tag] for name, tag in _OF_VERSION.items() if version.tags.get(tag)}
    return Origin(
        title=f"models:/{version.name}/{version.version}",
        fingerprint=version.tags.get(FINGERPRINT_TAG, ""),
        facts={"aliases": ", ".join(sorted(aliases)) or "none", **facts},
        settings={},
        changed={},
        origins=tuple(_of_version(version, store)),
    )


def _of_version(version: ModelVersion, store: ArtifactStore) -> Iterator[Origin]:
    fingerprint = version.tags.get(FINGERPRINT_TAG, "")
    kind = "encoder" if version.tags.get(KIND_TAG) == "encoder" else "finetuned"
    yield _of_artifact(kind, fingerprint, store)


def _of_artifact(name: str, fingerprint: str, store: ArtifactStore) -> Origin:
    artifact = _found(name, fingerprint, store)
    if artifact is None:
        return Origin(
            title=name,
            fingerprint=fingerprint,
            facts={"not in this store": store.url},
            settings={},
            changed={},
        )
    manifest, stage = artifact.manifest, _STAGES.get(artifact.kind)
    inputs = dict(manifest.inputs)
    told = {name: inputs.pop(name) for name in _SAID if name in inputs}
    facts = {
        "holds": headline(artifact),
        "made": f"{manifest.created}, by {manifest.code_version}",
        **told,
        "files": _files(artifact),
    }
    usual = getattr(EndToEndRecipe(), stage.section, None) if stage and stage.section else None
    default = usual.model_dump(mode="json") if usual is not None else {}
    settings = manifest.settings
    return Origin(
        title=f"{stage.title if stage is not None else artifact.kind}",
        fingerprint=fingerprint,
        facts={key: value for key, value in facts.items() if value},
        settings=dict(flattened(settings)),
        changed={path: value for path, value, _ in differences(settings, default)},
        origins=tuple(
            _of_artifact(key, value, store)
            if is_fingerprint(value) and _found(key, value, store) is not None
            else _of_bytes(key, value, artifact)
            for key, value in sorted(inputs.items())
        ),
    )


def _of_bytes(name: str, value: str, artifact: Artifact) -> Origin:
    """An input that is no artifact: raw text, labelled files, and how they were read."""
    told = artifact.statistics.get("input", {}) if artifact.kind == "corpus" else {}
    facts = {
        "paths": ", ".join(told.get("paths", ())),
        "files": f"{told['files']:,}" if "files" in told else "",
        "bytes": f"{told['bytes']:,}" if "bytes" in told else "",
    }
    return Origin(
        title=name,
        fingerprint=value,
        facts={key: text for key, text in facts.items() if text},
        settings={},
        changed={},
    )


def _files(artifact: Artifact) -> str:
    names = artifact.names()
    total = sum(record.bytes for record in artifact.manifest.files.values())
    shown = ", ".join(names[:_SHOWN_FILES]) + (", …" if len(names) > _SHOWN_FILES else "")
    return f"{len(names)} of {total:,} bytes: {shown}"


def _found(name: str, fingerprint: str, store: ArtifactStore) -> Artifact | None:
    """The artifact `fingerprint`, which most often is of the kind that its reader calls it."""
    for kind in dict.fromkeys((name, *_KINDS)):
        found = store.find(kind, fingerprint) if kind in _KINDS else None
        if found is not None:
            return found
    return None
