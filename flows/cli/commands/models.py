"""The registry on the command line: list models, show lineage, compare versions."""

import json
import sys
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.commands.pictures import attention, similar
from flows.cli.registry import AsJson, Home, Store, context_of, tracker_of
from pipelines.config.errors import UserError

if TYPE_CHECKING:
    from rich.tree import Tree

    from pipelines.registry.comparison.versus import Versus
    from pipelines.registry.lineage import LineageNode

_WHOLE_LINES = 100_000
_SHOWN_MOVES = 10  # of a name; --json has all

Reference = Annotated[str, typer.Argument(help="name, name@alias or name/version.")]

commands = typer.Typer()
commands.command()(attention)
commands.command()(similar)


@commands.callback(invoke_without_command=True)
def models(context: typer.Context, home: Home = None, as_json: AsJson = False) -> None:
    """List registered models, or look into one.

    The list shows versions, how they compare, and which version had which alias.

    Example: bertsmith models
    """
    if context.invoked_subcommand is not None:
        if home is not None or as_json:
            raise UserError(f"give --home and --json after {context.invoked_subcommand}")
        return
    from pipelines.registry.listing import list_models
    from pipelines.registry.person_choice import moves_of
    from pipelines.tasks import family_title

    tracker = tracker_of(home)
    rows = list_models(tracker)
    client = tracker.client()
    moves = {name: moves_of(client, name) for name in dict.fromkeys(row.name for row in rows)}
    if as_json:
        rows_as_json = [
            {
                **asdict(row),
                "moves": [asdict(move) for move in moves[row.name] if move.version == row.version],
            }
            for row in rows
        ]
        print(json.dumps(rows_as_json, default=str, indent=2))
        return
    if not rows:
        print("The registry is empty; `bertsmith run` fills it.")
        return
    width = max(len(row.name) for row in rows)
    for row in rows:
        figure = f"{row.metric} {row.value:.1%}" if row.value is not None else ""
        aliases = ", ".join(f"@{alias}" for alias in row.aliases)
        proof = "verified" if row.is_verified else "not verified"
        print(
            f"{row.name:<{width}}  version {row.version:<3} {aliases:<22} "
            f"{family_title(row.kind):<18} {figure:<24} {proof:<12} "
            f"{row.created:%Y-%m-%d %H:%M}  {row.fingerprint[:12]}"
        )
        if row.comparison:
            print(f"{'':<{width}}  {row.comparison}")
        if row.lineage:
            made_from = ", ".join(f"{kind} {value[:12]}" for kind, value in row.lineage.items())
            print(f"{'':<{width}}  made from {made_from}")
    for name, found in moves.items():
        if found:
            print(f"\n{name}, history of aliases")
        for move in found[-_SHOWN_MOVES:]:
            before = f", before {move.before}" if move.before else ""
            # The version's own lines have the comparison's result.
            why = "comparison" if move.how == "comparison" else f"{move.by}: {move.reason}"
            print(
                f"  {move.at[:16].replace('T', ' ')}  {move.alias} is version {move.version}"
                f"{before}, by {why}"
            )


@commands.command()
def lineage(
    model: Reference,
    show: Annotated[
        bool, typer.Option("--open", help="Write it as an HTML page and open that in a browser.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write it as an HTML page here. [default: in the home]")
    ] = None,
    store: Store = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show what a version was made from, down to files and settings.

    Example: bertsmith models lineage models:/bertsmith-encoder@champion --open
    """
    tracker = tracker_of(home)
    from pipelines.registry.lineage import lineage_of

    root = lineage_of(tracker, context_of(home, store).store, model)
    if as_json:
        print(json.dumps(root.to_json(), indent=2, ensure_ascii=False, default=str))
        return
    if show or out is not None:
        _draw(root, out or _page_in(home, root.title), opened=show)
        return
    from rich.console import Console

    # A pipe or a file has no width, and Rich would cut at 80 columns.
    width = None if sys.stdout.isatty() else _WHOLE_LINES
    console = Console(highlight=False, soft_wrap=True, width=width)
    console.print(_tree(root, set()))


@commands.command()
def compare(
    first: Reference,
    second: Reference,
    store: Store = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Compare two versions on the held-out data of the first: scores, settings, data.

    Example: bertsmith models compare bertsmith-classifier/3 bertsmith-classifier@champion
    """
    tracker = tracker_of(home)
    from pipelines.registry.comparison.versus import versus

    found = versus(tracker, context_of(home, store).store, first, second)
    if as_json:
        print(json.dumps(asdict(found), indent=2, ensure_ascii=False, default=str))
        return
    for line in _lines(found):
        print(line)


def _lines(found: "Versus") -> list[str]:
    lines = [f"{uri}: {figure or 'not verified'}" for uri, figure in found.logged.items()]
    difference = found.difference
    if difference is None:
        lines.append(f"The two cannot be compared: {found.why_not}.")
    else:
        name = found.metric.removeprefix("eval/").replace("_", " ")
        left_out = (
            f", without {found.left_out} that the second was trained on" if found.left_out else ""
        )
        better, value, low, high = difference.advantage("the first", "the second")
        lines.append(
            f"{name} on {difference.num_items} held-out items{left_out}: {difference.score:.4f} "
            f"and {difference.other:.4f}; {better} is better by {value:+.4f} "
            f"(95% interval {low:+.4f} to {high:+.4f})"
        )
    for title, rows in (
        ("settings that differ", found.settings),
        ("data that differ", found.data),
        ("made with", found.made_with),
    ):
        lines.append(f"\n{title}: {'none' if not rows else ''}".rstrip())
        width = max((len(key) for key in rows), default=0)
        lines.extend(f"  {key:<{width}}  {a}  ->  {b}" for key, (a, b) in rows.items())
    return lines


def _tree(origin: "LineageNode", shown: set[tuple[str, str]]) -> "Tree":
    """Lineage as a tree; an artifact that appears twice is shown in full once."""
    from rich.markup import escape
    from rich.tree import Tree

    key = origin.title, origin.fingerprint
    if key in shown and origin.settings:
        return Tree(f"[bold]{escape(origin.title)}[/bold] {escape(origin.fingerprint)}, see above")
    shown.add(key)
    tree = Tree(f"[bold]{escape(origin.title)}[/bold] {escape(origin.fingerprint)}")
    for name, value in origin.facts.items():
        tree.add(escape(f"{name}: {value}"))
    if origin.changed:
        settings = tree.add("settings other than the defaults")
        for path, value in origin.changed.items():
            settings.add(escape(f"{path}: {value}"))
    for each in origin.origins:
        tree.add(_tree(each, shown))
    return tree


def _draw(root: "LineageNode", page: Path, *, opened: bool) -> None:
    from pipelines.registry.lineage import lineage_page

    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(lineage_page(root), encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"cannot write the page {page} ({error.strerror}); choose another --out"
        ) from None
    print(page)
    if opened:
        webbrowser.open(page.absolute().as_uri())


def _page_in(home: Path | None, title: str) -> Path:
    from flows.environment import home_folder

    name = title.removeprefix("models:/").replace("/", "-")
    return home_folder(home) / "pages" / f"lineage-{name}.html"
