"""What registered models were made from, down to files and settings; and what is in use."""

import html
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pipelines.artifacts import Artifact, ArtifactStore
from pipelines.artifacts.manifest import is_fingerprint
from pipelines.recipes.files import differences, flattened
from pipelines.recipes.models import EndToEndRecipe
from pipelines.registry.card import headline, title_of
from pipelines.registry.finding import (
    CODE_TAG,
    COMPARISON_TAG,
    DIGEST_TAG,
    KIND_TAG,
    PROOF_TAG,
    find_model,
    pages,
    reference_to,
    uri_of,
)
from pipelines.stages import STAGES
from pipelines.tracking.tracker import FINGERPRINT_TAG, Tracker
from pipelines.training.imported_models import IMPORTED

_KINDS = (*STAGES, "imported_encoder", IMPORTED)
_OF_VERSION = {
    "kind": KIND_TAG, "score": f"{PROOF_TAG}.reproduced", "of": f"{PROOF_TAG}.metric",
    "comparison": f"{COMPARISON_TAG}.reason", "code": CODE_TAG, "digest": DIGEST_TAG,
    "flow run": "bertsmith.flow_run", "recipe": "bertsmith.recipe",
}  # fmt: skip
_SHOWN_FILES = 8
_PREFIX = "bertsmith."
_PAGE = 100  # runs
_SAID = ("format", "heldout_format", "libraries")  # inputs that are no bytes but how they are read


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageNode:
    """One thing that a version was made from: an artifact, or bytes that came from outside."""

    title: str
    fingerprint: str  # of the artifact, or what its bytes hash to
    facts: Mapping[str, str]  # such as who made it, and what it holds
    settings: Mapping[str, Any] = field(default_factory=dict)  # all of them, by dotted path
    changed: Mapping[str, Any] = field(default_factory=dict)  # those that are not the default
    origins: tuple["LineageNode", ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "title": self.title,
            "fingerprint": self.fingerprint,
            "facts": dict(self.facts),
            "settings": dict(self.settings),
            "from": [origin.to_json() for origin in self.origins],
        }


def lineage_of(tracker: Tracker, store: ArtifactStore, reference: str) -> LineageNode:
    """The tree below the version that `reference` names.

    A branch ends, marked so, at what the store no longer holds. Raises UserError where there is no
    such version or the store does not answer, MlflowException where the tracker does not.
    """
    version = find_model(tracker.client(), reference)
    facts = {name: version.tags[tag] for name, tag in _OF_VERSION.items() if version.tags.get(tag)}
    fingerprint = version.tags.get(FINGERPRINT_TAG, "")
    kind = "encoder" if version.tags.get(KIND_TAG) == "encoder" else "finetuned"
    return LineageNode(
        title=uri_of(version),
        fingerprint=fingerprint,
        facts={"aliases": ", ".join(sorted(version.aliases)) or "none", **facts},
        origins=(_of_artifact(kind, fingerprint, store),),
    )


def _of_artifact(name: str, fingerprint: str, store: ArtifactStore) -> LineageNode:
    artifact = _found(name, fingerprint, store)
    if artifact is None:
        return LineageNode(
            title=name, fingerprint=fingerprint, facts={"not in this store": store.url}
        )
    manifest, stage = artifact.manifest, STAGES.get(artifact.kind)
    inputs = dict(manifest.inputs)
    reading = {name: inputs.pop(name) for name in _SAID if name in inputs}
    facts = {
        "holds": headline(artifact),
        "made": f"{manifest.created}, by {manifest.code_version}",
        **reading,
        "files": _files(artifact),
    }
    usual = getattr(EndToEndRecipe(), stage.section, None) if stage and stage.section else None
    default = usual.model_dump(mode="json") if usual is not None else {}
    settings = manifest.settings
    return LineageNode(
        title=title_of(artifact),
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


def _of_bytes(name: str, value: str, artifact: Artifact) -> LineageNode:
    """An input that is no artifact: raw text, labelled files, and how they were read."""
    read = artifact.statistics.get("input", {}) if artifact.kind == "corpus" else {}
    facts = {"paths": ", ".join(read["paths"])} if read.get("paths") else {}
    facts |= {key: f"{read[key]:,}" for key in ("files", "bytes") if key in read}
    return LineageNode(title=name, fingerprint=value, facts=facts)


def _files(artifact: Artifact) -> str:
    names = artifact.names()
    total = sum(record.bytes for record in artifact.manifest.files.values())
    shown = ", ".join(names[:_SHOWN_FILES]) + (", …" if len(names) > _SHOWN_FILES else "")
    return f"{len(names)} of {total:,} bytes: {shown}"


def _found(name: str, fingerprint: str, store: ArtifactStore) -> Artifact | None:
    """The artifact `fingerprint`; usually its kind is the name that its user has for it."""
    for kind in dict.fromkeys((name, *_KINDS)):
        found = store.find(kind, fingerprint) if kind in _KINDS else None
        if found is not None:
            return found
    return None


def fingerprints_in_use(
    tracker: Tracker, *, since: datetime | None = None
) -> dict[str, tuple[str, ...]]:
    """Who uses each fingerprint: `name/version` of models, and runs that began after `since`.

    Raises UserError where the tracker does not answer.
    """
    users: dict[str, set[str]] = defaultdict(set)
    with tracker.answering("to say which artifacts are in use"):
        for name, tags in _tagged(tracker, since):
            for key, value in tags.items():
                if key.startswith(_PREFIX) and is_fingerprint(value):
                    users[value].add(name)
    return {fingerprint: tuple(sorted(names)) for fingerprint, names in users.items()}


def _tagged(tracker: Tracker, since: datetime | None) -> Iterator[tuple[str, Mapping[str, str]]]:
    client = tracker.client()
    for version in pages(client.search_model_versions):
        yield reference_to(version), version.tags
    if since is None:
        return
    ids = [experiment.experiment_id for experiment in pages(client.search_experiments)]
    began = f"attributes.start_time >= {int(since.timestamp() * 1000)}"
    for run in pages(client.search_runs, ids, began, max_results=_PAGE):
        yield f"run {run.info.run_name}", run.data.tags


_STYLE = """
body{font:14px/1.4 system-ui,sans-serif;margin:24px;color:#1d2733;background:#f7f8fa}
h1{font-size:20px;margin:0 0 4px}p{margin:0 0 16px;color:#5a6675}
ul{list-style:none;margin:0 0 0 10px;padding:0 0 0 18px;border-left:2px solid #b8c2cf}
body>ul{margin:0;padding:0;border:0}
details{background:#fff;border:1px solid #d5dbe3;border-radius:6px;margin:8px 0;padding:8px 12px}
details.outside{background:#fff8e6;border-color:#d9b34a}
summary{cursor:pointer;font-weight:600}
code{font:12px ui-monospace,monospace;color:#5a6675;font-weight:400}
table{border-collapse:collapse;margin:8px 0}
td{padding:2px 14px 2px 0;vertical-align:top;font-size:13px;overflow-wrap:anywhere}
td:first-child{color:#5a6675;white-space:nowrap}
tr.changed td{font-weight:600}
"""


def lineage_page(root: LineageNode) -> str:
    """The tree below `root`, each artifact once, with its settings."""
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        f"<title>{_text(root.title)}</title><style>{_STYLE}</style>"
        f"<h1>{_text(root.title)}</h1>"
        "<p>What it was made from, down to the bytes that came from outside. Settings other than "
        "the defaults are bold.</p>"
        f"<ul>{_branch(root, set())}</ul></html>\n"
    )


def _branch(origin: LineageNode, shown: set[tuple[str, str]]) -> str:
    key = origin.title, origin.fingerprint
    name = f"{_text(origin.title)} <code>{_text(origin.fingerprint)}</code>"
    if key in shown and origin.settings:
        return f"<li>{name}, see above</li>"
    shown.add(key)
    changed = {path.partition(".")[0] for path in origin.changed}
    rows = [_row(fact, value, is_changed=False) for fact, value in origin.facts.items()]
    rows += [
        _row(path, value, is_changed=path.partition(".")[0] in changed)
        for path, value in origin.settings.items()
    ]
    kind = "" if origin.settings or origin.origins else " class='outside'"
    below = "".join(_branch(each, shown) for each in origin.origins)
    return (
        f"<li><details{kind}><summary>{name}</summary><table>{''.join(rows)}</table></details>"
        f"{f'<ul>{below}</ul>' if below else ''}</li>"
    )


def _row(name: str, value: object, *, is_changed: bool) -> str:
    kind = " class='changed'" if is_changed else ""
    return f"<tr{kind}><td>{_text(name)}</td><td>{_text(value)}</td></tr>"


def _text(value: object) -> str:
    return html.escape(str(value))
