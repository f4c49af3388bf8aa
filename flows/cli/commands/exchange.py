"""Commands that bring models in and out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flows.cli.registry import (
    Home,
    Store,
    check_name,
    context_of,
    model_address,
    named,
    runtime_of,
    say,
    tracker_of,
)
from pipelines.errors import UserError

if TYPE_CHECKING:
    from pipelines.store import Artifact


def import_folder(
    path: Annotated[
        str, typer.Argument(help="A folder with a BERT or a tokenizer, or a vocab.txt.")
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
        check_name(name)
        if exchange.is_vocabulary(path):
            raise UserError("--name registers models, and this is a vocabulary; leave it out")
        from pipelines.stage import check_tracker

        check_tracker(runtime_of(home, store))
        say(f"reading {path}")
    context = context_of(home, store)
    artifact = exchange.import_path(path, context, head=head, lowercase=is_uncased)
    for line in _what_it_is(artifact):
        print(line, flush=True)
    if artifact.kind == "vocabulary":
        print(
            "next: bertsmith run --corpus 'texts/*.txt' --set "
            f"vocabulary.tokenizer={artifact.fingerprint}"
        )
        return
    reference = artifact.fingerprint
    if name is not None:
        from pipelines.registry.exchange import register_import
        from pipelines.stage import open_context

        context = open_context(runtime_of(home, store))
        version = register_import(artifact, name, context, say)
        how = "was registered before" if version.is_verified else "reproduced its answers"
        print(f"  {version.uri}, loaded in a fresh process, {how}")
        reference = version.uri
    print(f"next: bertsmith run --encoder {reference} --labels FILE")


def _what_it_is(artifact: "Artifact") -> list[str]:
    """What was imported, a line each."""
    from pipelines.train.imported import CAUSAL

    statistics = artifact.statistics
    found = "already in the store" if artifact.reused else "imported into the store"
    lines = [f"{artifact.kind}/{artifact.fingerprint}: {found}"]
    if artifact.kind == "vocabulary":
        case = "uncased" if statistics["lowercase"] else "cased"
        return [*lines, f"  {statistics['size']:,} tokens, {case}"]
    size = statistics["size"]
    lines.append(
        f"  head {statistics['head']}, {statistics['num_parameters']:,} parameters, {size:,} tokens"
    )
    if statistics.get("causal"):
        lines.append(f"  {CAUSAL}")
    if statistics["left_behind"]:
        lines.append(f"  its head, {statistics['left_behind']}, is not supported and was left out")
    if statistics["rows"] > size:
        more = statistics["rows"] - size
        lines.append(f"  {more:,} rows of its embeddings have no token and are never used")
    if statistics["embedding"]:
        how = statistics["embedding"]
        length = "of length 1" if how["normalize"] else "of any length"
        lines.append(
            f"  sentence embeddings: {how['pooling']} over at most {how['max_tokens']} tokens, "
            f"{length}"
        )
    return lines


def export_version(
    model: Annotated[str, typer.Argument(help="name, name@alias, name/version or a folder.")],
    to: Annotated[Path, typer.Option(help="New folder to write.")],
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
    home: Home = None,
) -> None:
    """Export a model for transformers, sentence-transformers or ONNX Runtime.

    Example: bertsmith export bertsmith-encoder@champion --to my-encoder
    """
    from pipelines.registry import exchange

    tracker = tracker_of(home)
    from pipelines.registry.package import versioned

    called = versioned(tracker, named(model, home))
    say(f"model: {model_address(called)}")
    as_onnx = form == "onnx"
    print(f"{to}: {exchange.export_version(tracker, called, to, pooling, as_onnx=as_onnx)}")
