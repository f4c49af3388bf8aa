"""What a registered model was made from, down to files and settings, as lines of text."""

from collections.abc import Iterator

from pipelines.recipes.files import differences
from pipelines.recipes.recipe import Recipe
from pipelines.registry.card import headline, title_of
from pipelines.stages import STAGES
from pipelines.store import Artifact, ArtifactStore
from pipelines.store.artifact import is_fingerprint
from pipelines.train.imported_models import IMPORTED

_KINDS = (*STAGES, "imported_encoder", IMPORTED)
_READING = ("format", "heldout_format", "libraries")  # inputs that say how bytes were read


def lineage_lines(kind: str, fingerprint: str, store: ArtifactStore) -> list[str]:
    """The tree below the artifact `fingerprint`, indented, each artifact in full once.

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
    line = f"{indent}{title_of(artifact)} {fingerprint}"
    if fingerprint in shown:
        yield f"{line}, see above"
        return
    shown.add(fingerprint)
    yield line
    manifest, inner = artifact.manifest, f"{indent}  "
    total = sum(record.bytes for record in manifest.files.values())
    yield f"{inner}holds {headline(artifact)}, {len(manifest.files)} files of {total:,} bytes"
    yield f"{inner}made {manifest.created}, by {manifest.code_version}"
    stage = STAGES.get(artifact.kind)
    usual = getattr(Recipe(), stage.name, None) if stage else None
    default = usual.model_dump(mode="json") if usual is not None else {}
    for path, value in differences(manifest.settings, default).items():
        yield f"{inner}{path}: {value}"
    read = artifact.statistics.get("input", {}) if artifact.kind == "corpus" else {}
    if read.get("paths"):
        yield f"{inner}paths: {', '.join(read['paths'])}"
    for name, value in sorted(manifest.inputs.items()):
        if name in _READING:
            yield f"{inner}{name}: {value}"
        elif is_fingerprint(value) and _artifact(name, value, store) is not None:
            yield from _branch(name, value, store, inner, shown)
        else:  # raw text or labelled files
            yield f"{inner}{name} {value}"


def _artifact(name: str, fingerprint: str, store: ArtifactStore) -> Artifact | None:
    """The artifact `fingerprint`; usually its kind is the name that its user has for it."""
    for kind in dict.fromkeys((name, *_KINDS)):
        artifact = store.find(kind, fingerprint) if kind in _KINDS else None
        if artifact is not None:
            return artifact
    return None
