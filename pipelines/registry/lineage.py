"""What a registered model was made from."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from pydantic import ValidationError

from pipelines.recipes.files import differences
from pipelines.recipes.recipe import Recipe
from pipelines.stage import IMPORTED
from pipelines.stages import STAGES
from pipelines.store import Artifact, ArtifactStore
from pipelines.store.artifact import is_fingerprint

_KINDS: Final = (*STAGES, "imported_encoder", IMPORTED)  # that a lineage may name


def described(artifact: Artifact) -> tuple[str, str]:
    """The title of an artifact's stage, and the count or figure that describes it best."""
    stage = STAGES.get(artifact.kind)
    if stage is None:
        return artifact.kind, str(artifact.statistics.get("source", "given"))
    return stage.title, stage.headline(artifact.statistics)


def lineage_lines(kind: str, fingerprint: str, store: ArtifactStore) -> list[str]:
    """What an artifact was made from, down to files and settings, indented, each part once.

    Settings are those that are not the default. A branch ends, marked so, at what the store does
    not hold. Raises UserError where the store does not answer.
    """
    return list(_branch(kind, fingerprint, store, "", set()))


def _branch(
    kind: str, fingerprint: str, store: ArtifactStore, indent: str, shown: set[str]
) -> Iterator[str]:
    artifact = _artifact(kind, fingerprint, store)
    if artifact is None:
        yield f"{indent}{kind} {fingerprint}: not in the store {store.url}"
        return
    title, headline = described(artifact)
    line = f"{indent}{title} {fingerprint}"
    if fingerprint in shown:
        yield f"{line}, see above"
        return
    shown.add(fingerprint)
    yield line
    manifest, inner = artifact.manifest, f"{indent}  "
    yield f"{inner}holds {headline}"
    yield f"{inner}made {manifest.created}, by {manifest.code_version}"
    for path, value in differences(manifest.settings, _default(artifact)).items():
        yield f"{inner}{path}: {value}"
    if artifact.kind == "corpus" and (paths := artifact.statistics.get("input", {}).get("paths")):
        yield f"{inner}paths: {', '.join(paths)}"
    for name, value in sorted(manifest.inputs.items()):
        if is_fingerprint(value) and _artifact(name, value, store) is not None:
            yield from _branch(name, value, store, inner, shown)
        else:  # raw text or labelled files, and how they were read
            yield f"{inner}{name} {value}"


def _default(artifact: Artifact) -> dict[str, Any]:
    """The settings of a stage that nobody sets, with a source of the kind that this one has."""
    stage = STAGES.get(artifact.kind)
    usual = getattr(Recipe(), stage.name, None) if stage else None
    if usual is None:
        return {}
    kinds = {
        section: {"kind": values["kind"]}
        for section, values in artifact.manifest.settings.items()
        if isinstance(values, Mapping) and "kind" in values
    }
    with suppress(ValidationError):  # of a kind that newer code knows
        usual = type(usual).model_validate(kinds)
    return usual.model_dump(mode="json")


def _artifact(name: str, fingerprint: str, store: ArtifactStore) -> Artifact | None:
    """The artifact `fingerprint`; usually its kind is the name that its user has for it."""
    for kind in sorted(_KINDS, key=lambda kind: kind != name):
        artifact = store.find(kind, fingerprint)
        if artifact is not None:
            return artifact
    return None
