"""The registry on the command line: its models, how good one is, aliases, models in and out."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from flows.cli.options import (
    AsJson,
    Home,
    Store,
    context_of,
    explained,
    in_full,
    named,
    registry_of,
    runtime_of,
    say,
    say_note,
    tracker_of,
)
from flows.environment import home_folder, prepare_flows, set_defaults
from pipelines.errors import UserError
from pipelines.registry.find import is_folder
from pipelines.settings import expanded

if TYPE_CHECKING:
    from pipelines.registry.find import ListedModel

Name = Annotated[str, typer.Argument(help="Registered name of the model.")]
_OTHERS: Final = 10  # versions beside the one that is shown in full
# Figures of an import that its user should see.
_DESCRIBED = (
    "size", "lowercase", "head", "num_parameters", "causal", "embedding",
)  # fmt: skip
Because = Annotated[str, typer.Option("--because", help="Why, for the history.")]


def models(
    model: Annotated[
        str | None,
        typer.Argument(help="name, name@alias or name/version: show this one in full."),
    ] = None,
    store: Store = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """List registered models with their scores, or show one in full.

    In full: its figures, why it has its aliases, its comparison, its proof, the other versions of
    its name, and what it was made from, down to files and settings.

    Example: bertsmith models bertsmith-encoder@champion
    """
    if model is not None:
        _show(model, home, store, as_json=as_json)
        return
    from pipelines.registry.find import list_models
    from pipelines.stage import has_registry

    tracker = tracker_of(home)
    rows = list_models(tracker) if has_registry(runtime_of(home)) else []
    if as_json:
        print(json.dumps([asdict(row) for row in rows], default=str, indent=2))
        return
    if not rows:
        print(
            f"The registry at {tracker.shown_uri} is empty; `bertsmith run` fills it, and "
            "--home names another."
        )
        return
    width = max(len(row.name) for row in rows)
    for row in rows:
        proof = "verified" if row.is_verified else "not verified"
        print(
            f"{row.name:<{width}}  version {row.version:<3} {_aliases(row):<22} "
            f"{_kind_of(row):<18} {_score(row):<24} {proof:<12} "
            f"{row.created:%Y-%m-%d %H:%M}  {row.fingerprint[:12]}"
        )
        for alias, reason in row.promoted.items():
            print(f"{'':<{width}}  {alias}: {reason}")
        if row.comparison and row.comparison not in row.promoted.values():
            print(f"{'':<{width}}  {row.comparison}")


def _show(model: str, home: Home, store: Store, *, as_json: bool) -> None:
    tracker = registry_of(home)
    from pipelines.registry.find import find_model, list_models, listed, uri_of
    from pipelines.registry.lineage import lineage_lines

    version = find_model(tracker.client(), model)
    tags = {
        key.removeprefix("bertsmith."): value
        for key, value in sorted(version.tags.items())
        if key.startswith("bertsmith.")
    }
    kind = "encoder" if tags.get("kind") == "encoder" else "finetuned"
    lines = lineage_lines(kind, tags.get("fingerprint", ""), context_of(home, store).store)
    if as_json:
        aliases = sorted(version.aliases)
        whole = {"model": uri_of(version), "aliases": aliases, "tags": tags, "lineage": lines}
        print(json.dumps(whole, indent=2, ensure_ascii=False))
        return
    shown = listed(version, version.aliases)
    print(f"{uri_of(version)}  {_aliases(shown) or 'no alias'}")
    print(f"{_kind_of(shown) or 'model'}, registered {shown.created:%Y-%m-%d %H:%M}")
    for section in (version.description or "").split("\n## "):  # of its card
        title, _, text = section.partition("\n")
        if title == "Held-out figures":
            print("", text.strip(), sep="\n")
    print()
    for title, text in _facts(shown, tags):
        print(f"{title}: {text}")
    others = [row for row in list_models(tracker, shown.name) if row.version != shown.version]
    for number, row in enumerate(others):
        if number < _OTHERS or row.aliases:
            described = ", ".join(filter(None, (_score(row) or "no score", _aliases(row))))
            print(f"version {row.version}: {described}")
    if len(others) > _OTHERS:
        print("see `bertsmith models` for all versions")
    print("made from")
    for line in lines:
        print(f"  {line}")


def _kind_of(row: "ListedModel") -> str:
    from pipelines.tasks import family_title

    return family_title(row.kind)


def _score(row: "ListedModel") -> str:
    from pipelines.stages.figures import style_of

    metric = row.metric.removeprefix("eval/").replace("_", " ")
    return "" if row.value is None else f"{metric} {row.value:{style_of(metric, row.value)}}"


def _aliases(row: "ListedModel") -> str:
    return ", ".join(f"@{alias}" for alias in row.aliases)


def _facts(row: "ListedModel", tags: dict[str, str]) -> Iterator[tuple[str, str]]:
    """A version's comparison, why it has or had its aliases, and its proof; no reason twice."""
    if row.comparison:
        yield "comparison", row.comparison
    for key, reason in tags.items():
        group, _, alias = key.removesuffix(".reason").partition(".")
        if group == "promoted" and key.endswith(".reason"):
            title = alias if alias in row.aliases else f"formerly {alias}"
            yield title, "by this comparison" if reason == row.comparison else reason
    if not row.is_verified:
        yield "not verified", "it has not reproduced its score in a fresh process"
        return
    score = f"held-out {score}" if (score := _score(row)) else "answers"
    machine = [tags.get(f"proof.{name}", "") for name in ("device", "precision", "libraries")]
    yield (
        "verified",
        f"a fresh process reproduced its {score} ({tags.get('proof.comparison', 'unknown')}); "
        f"{', '.join(filter(None, machine))}",
    )


def promote(
    name: Name,
    version: Annotated[
        str, typer.Option("--version", help="The version: its number, or an alias it has now.")
    ] = "candidate",
    alias: Annotated[str, typer.Option("--to", help="The alias it is given.")] = "champion",
    because: Because = "",
    home: Home = None,
) -> None:
    """Give an alias to a verified version.

    Whatever its comparison with the version that has the alias says; both must be of one kind.

    Example: bertsmith promote bertsmith-encoder --version 3
    """
    _promote(name, version, alias, because, home)


def rollback(
    name: Name,
    alias: Annotated[str, typer.Option("--alias", help="The alias that goes back.")] = "champion",
    because: Because = "",
    home: Home = None,
) -> None:
    """Give an alias back to the version before.

    Later runs of a recipe do not undo it.

    Example: bertsmith rollback bertsmith-classifier --because 'worse on short texts'
    """
    _promote(name, "previous", alias, because, home)


def _promote(name: str, source: str, alias: str, because: str, home: Path | None) -> None:
    """Run the flow, after checking the request."""
    folder = home_folder(home)
    set_defaults(folder)
    from pipelines.recipes.recipe import PromotionRecipe

    with explained("promote"):
        recipe = PromotionRecipe(name=name, source=source, alias=alias, reason=because)
    from pipelines.registry.promote import decide_promotion

    decide_promotion(registry_of(home), name, source, alias)
    wait_for_api = prepare_flows(folder)
    from flows.promote import promote as flow

    wait_for_api()
    moved = flow(recipe)
    is_new = moved.previous_version not in (None, moved.version)
    before = f", before it was {moved.previous_version}" if is_new else ""
    print(f"{moved.name}@{moved.alias} is version {moved.version}{before}")


def import_folder(
    path: Annotated[
        str,
        typer.Argument(
            help="A folder with a BERT or a tokenizer, or a vocab.txt.", callback=in_full
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="Also register the model under this name.")
    ] = None,
    head: Annotated[str | None, typer.Option(help="Keep only this head.")] = None,
    is_uncased: Annotated[
        bool | None,
        typer.Option("--uncased/--cased", help="Whether texts are lowercased, if no file says."),
    ] = None,
    home: Home = None,
    store: Store = None,
) -> None:
    """Import a BERT or a vocabulary that was made elsewhere.

    It goes into the store and, with --name, into the registry, where every command and recipe
    finds it.

    Example: bertsmith import all-MiniLM-L6-v2 --name minilm
    """
    from pipelines.registry import exchange

    if name is not None:
        from pipelines.recipes.recipe import RegistrationSettings
        from pipelines.stage import check_tracker

        with explained("--name", RegistrationSettings):
            RegistrationSettings(encoder_name=name)
        if exchange.is_vocabulary(path):
            raise UserError("--name registers models, and this is a vocabulary; leave it out")
        check_tracker(runtime_of(home, store))
        say(f"reading {path}")
    context = replace(context_of(home, store), observe=say_note)
    artifact = exchange.import_path(path, context, head=head, lowercase=is_uncased)
    state = "already in the store" if artifact.reused else "imported into the store"
    print(f"{artifact.kind}/{artifact.fingerprint}: {state}", flush=True)
    for figure in _DESCRIBED:
        if artifact.statistics.get(figure):
            print(f"  {figure.replace('_', ' ')}: {artifact.statistics[figure]}")
    if artifact.kind == "vocabulary":
        print(
            "next: bertsmith run --corpus 'texts/*.txt' --set "
            f"vocabulary.tokenizer={artifact.fingerprint}"
        )
        return
    reference = artifact.fingerprint
    if name is not None:
        from pipelines.stage import open_context

        context = open_context(runtime_of(home, store))
        version = exchange.register_import(artifact, name, context, say)
        how = "was registered before" if version.is_verified else "reproduced its answers"
        print(f"  {version.uri}, loaded in a fresh process, {how}")
        reference = version.uri
    print(f"next: bertsmith run --encoder {reference} --labels FILE")


def export_version(
    model: Annotated[
        str,
        typer.Argument(help="name, name@alias, name/version or a folder.", callback=in_full),
    ],
    to: Annotated[Path | None, typer.Option(help="New folder to write.")] = None,
    pooling: Annotated[
        str | None,
        typer.Option(
            help="mean or cls: the encoder alone, for sentence-transformers. "
            "[default: as the model itself says]",
            show_default=False,
        ),
    ] = None,
    form: Annotated[
        Literal["transformers", "onnx"],
        typer.Option("--format", help="onnx: for ONNX Runtime, compared with the model."),
    ] = "transformers",
    push: Annotated[
        str | None,
        typer.Option(metavar="OWNER/NAME", help="Upload it to this repository of the hub."),
    ] = None,
    is_private: Annotated[
        bool, typer.Option("--private", help="A new repository is private.")
    ] = False,
    license: Annotated[
        str, typer.Option(help="For the card: the license of the weights, such as apache-2.0.")
    ] = "",
    language: Annotated[
        list[str] | None, typer.Option(help="For the card: a language, such as de. Repeatable.")
    ] = None,
    base_model: Annotated[
        str, typer.Option(help="For the card: the model of the hub that it was made from.")
    ] = "",
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="For the card: a dataset of the hub that it learned from. Repeatable."),
    ] = None,
    home: Home = None,
) -> None:
    """Write a model for other libraries, or to the hub.

    The folder opens in transformers and sentence-transformers, or in ONNX Runtime. A registered
    model brings its card (README.md), with the metadata that the hub reads.

    Example: bertsmith export bertsmith-encoder@champion --to my-encoder
    """
    if to is None and push is None:
        raise UserError("name the folder to write (--to), a repository of the hub (--push) or both")
    to = None if to is None else expanded(to)
    from pipelines.registry import exchange, hub

    metadata = hub.CardMetadata(license, tuple(language or ()), base_model, tuple(dataset or ()))
    if push is not None:
        hub.check_repository(push)
    elif is_private:
        raise UserError("--private is of a repository; name one with --push, or leave it out")
    reference = named(model, home)
    tracker = tracker_of(home) if is_folder(reference) else registry_of(home)
    from pipelines.registry.package import versioned

    called = versioned(tracker, reference)
    say(f"model: {called}")
    if is_folder(called) and any(metadata):
        raise UserError(
            "--license, --language, --base-model and --dataset are for the card of a registered "
            f"model, and {called} is a folder; leave them out"
        )
    with TemporaryDirectory() as scratch:
        folder = to or Path(scratch, "export")
        written = exchange.export_version(
            tracker,
            called,
            folder,
            pooling,
            as_onnx=form == "onnx",
            metadata=metadata,
            repository=push or "",
        )
        print(f"{to or push}: {written}")
        if push is not None:
            print(hub.push(folder, push, is_private=is_private))
