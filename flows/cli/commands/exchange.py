"""Commands that bring models in and out, and that look into them."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.asked_model import asked_model, model_address, say
from flows.cli.commands.models import (
    Model,
    context_of,
    named,
    place_of,
    registered_name,
    tracker_of,
)
from flows.cli.options import Home, Store
from pipelines.core.errors import UserError

if TYPE_CHECKING:
    from pipelines.artifacts import Artifact


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command("import")(bring_in)
    app.command("export")(take_out)
    app.command("inspect")(inspect)
    app.command("similar")(similar)


def bring_in(
    path: Annotated[
        str, typer.Argument(help="A folder with a BERT or a tokenizer, or a vocab.txt.")
    ],
    name: Annotated[
        str | None, typer.Option(help="Register the model under this name, too.")
    ] = None,
    head: Annotated[str | None, typer.Option(help="Keep this head alone.")] = None,
    is_uncased: Annotated[
        bool | None,
        typer.Option("--uncased/--cased", help="What texts are, where no file says it."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="The task that --name registers it for, where several have such models."),
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Write it as a new folder, too.")] = None,
    home: Home = None,
    store: Store = None,
) -> None:
    """Bring a BERT or a vocabulary that was made elsewhere into the store, and the registry.

    Every command and recipe takes it from there.

    Example: bertsmith import all-MiniLM-L6-v2 --name minilm
    """
    from pipelines.registry import exchange

    if name is not None:
        registered_name(name)
        if exchange.is_vocabulary(path):
            raise UserError("--name registers a model, and a vocabulary is none; leave it out")
        place_of(home, store).refuse_unreachable_tracker()
        say(f"reading {path}")
    context = context_of(home, store)
    artifact = exchange.bring_in(path, context, head=head, lowercase=is_uncased)
    for line in _what_it_is(artifact):
        print(line, flush=True)
    if to is not None:
        exchange.write_out(artifact, to)
        print(f"  written to {to}")
    if artifact.kind == "vocabulary":
        print(
            "next: bertsmith run --corpus 'texts/*.txt' --set "
            f"vocabulary.tokenizer={artifact.fingerprint}"
        )
        return
    reference = artifact.fingerprint
    if name is not None:
        from pipelines.registry.importing import register_import

        context = place_of(home, store).context()
        registered = register_import(artifact, name, context, say, task)
        version, proof = registered.model, registered.verification
        how = f"repeated its answers ({proof.comparison})" if proof else "was registered before"
        print(f"  {version.uri}, loaded in a process of its own, {how}; {registered.alias}")
        reference = f"models:/{version.name}@{registered.alias}"
    print(f"next: bertsmith finetune --encoder {reference} --labels FILE")


def _what_it_is(artifact: "Artifact") -> list[str]:
    """What came in, a line each."""
    from pipelines.training.starting import CAUSAL

    told = artifact.statistics
    found = "found in the store" if artifact.reused else "taken into the store"
    lines = [f"{artifact.kind}/{artifact.fingerprint}: {found}"]
    if artifact.kind == "vocabulary":
        case = "uncased" if told["lowercase"] else "cased"
        return [*lines, f"  {told['size']:,} pieces, {case}"]
    added = f", {told['added_tokens']} of them added tokens" if told["added_tokens"] else ""
    lines.append(
        f"  head {told['head']}, {told['num_parameters']:,} parameters, {told['size']:,} pieces"
        + added
    )
    if told.get("causal"):
        lines.append(f"  {CAUSAL}")
    if told["left_behind"]:
        lines.append(f"  its head, {told['left_behind']}, is none that is read here: left behind")
    if told["rows"] > told["size"]:
        more = told["rows"] - told["size"]
        lines.append(f"  {more:,} rows of its embeddings are no pieces: no text reads them")
    if told["embedding"]:
        how = told["embedding"]
        length = "of length 1" if how["normalize"] else "of any length"
        lines.append(
            f"  texts become vectors by {how['pooling']} of at most {how['max_tokens']} tokens, "
            f"{length}"
        )
    return lines


def take_out(
    model: Annotated[str, typer.Argument(help="name, name@alias, name/version or a folder.")],
    to: Annotated[Path, typer.Option(help="New folder for transformers.")],
    pooling: Annotated[
        str | None,
        typer.Option(
            help="mean, cls, max or mean_sqrt_len: the encoder alone, for sentence-transformers. "
            "[default: as the model itself says]",
            show_default=False,
        ),
    ] = None,
    home: Home = None,
) -> None:
    """Write a model as a folder that transformers opens, or sentence-transformers.

    Example: bertsmith export bertsmith-encoder@champion --to my-encoder
    """
    from pipelines.registry import exchange

    tracker = tracker_of(home)
    from pipelines.registry.opening import versioned

    called = versioned(tracker, named(model, home) or model)
    written = exchange.take_out(tracker, called, to, pooling)
    say(f"model: {model_address(called)}")
    print(f"{written.folder}: {written.called} with {written.num_parameters:,} parameters")
    if written.over_mean:
        print(
            "  its head reads the mean of all tokens, which no Auto class of transformers does: "
            f"sentence-transformers' SentenceTransformer({str(written.folder)!r}).encode(texts) "
            "gives its logits, in the order of id2label in config.json; AutoModel opens its encoder"
        )


def inspect(
    text: Annotated[str, typer.Argument(help="A text.")],
    out: Annotated[Path, typer.Option(help="A .html page or a .png sheet.")],
    model: Model = None,
    home: Home = None,
) -> None:
    """Draw what attends to what in a text, for every layer and head.

    Example: bertsmith inspect 'Returns the sum of the array.' --out attention.html
    """
    _require_place(out, (".html", ".png"))
    with asked_model(model, home, "encoder") as (folder, _):
        from pipelines.insight.attention_page import inspect as draw

        maps = draw(folder, text, out)
    layers, heads = maps.probabilities.shape[:2]
    print(f"{out}: {layers} layers, {heads} heads, {len(maps.pieces)} tokens")
    if maps.is_truncated:
        print("the text was longer than the model reads: its end is not in the picture")


def similar(
    texts: Annotated[list[str], typer.Argument(help="Two or more words or texts.")],
    out: Annotated[Path | None, typer.Option(help="A .png picture.")] = None,
    model: Model = None,
    home: Home = None,
) -> None:
    """Show how near words or texts are to each other in an encoder's eyes.

    Example: bertsmith similar matrix vector tensor plot figure --out similar.png
    """
    if out is not None:
        _require_place(out, (".png",))
    with asked_model(model, home, "encoder") as (folder, _):
        from pipelines.insight.similarity_picture import draw_similarities, similarities

        matrix, plane = similarities(folder, texts)
    width = max(len(text) for text in texts)
    for text, row in zip(texts, matrix.tolist(), strict=True):
        print(f"{text:<{width}}  " + "  ".join(f"{value:5.2f}" for value in row))
    if out is not None:
        draw_similarities(texts, matrix, plane, out)
        print(f"{out}: the matrix, and the texts in the plane")


def _require_place(out: Path, suffixes: tuple[str, ...]) -> None:
    """Raise UserError where no picture could be written; asked before a model is loaded."""
    if out.suffix not in suffixes:
        raise UserError(f"the picture must be a {' or '.join(suffixes)} file, got {out}")
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise UserError(
            f"the picture {out} must be a file in a folder that exists and can be written, but it "
            "is not; make the folder or choose another --out"
        )
