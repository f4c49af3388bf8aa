"""Commands that look up what a version was made from, and what sets two apart."""

import json
import sys
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.commands.models import tracker_of
from flows.cli.options import AsJson, Home, Store
from pipelines.core.errors import UserError

if TYPE_CHECKING:
    from rich.tree import Tree

    from pipelines.artifacts import ArtifactStore
    from pipelines.registry.comparison.versus import Versus
    from pipelines.registry.lineage import Origin

_WHOLE_LINES = 100_000

Reference = Annotated[str, typer.Argument(help="name, name@alias or name/version.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command()(lineage)
    app.command()(compare)


def lineage(
    model: Reference,
    show: Annotated[
        bool, typer.Option("--open", help="Draw it as a page and open that in a browser.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Where the page is written. [default: in the home]")
    ] = None,
    store: Store = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show what a version was made from, down to files and settings.

    Example: bertsmith lineage models:/bertsmith-encoder@champion --open
    """
    tracker = tracker_of(home)
    from pipelines.registry.lineage import descent_of

    root = descent_of(tracker, _store(home, store), model)
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


def compare(
    first: Reference,
    second: Reference,
    store: Store = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Compare two versions on the held-out data of the first: scores, settings, data.

    Example: bertsmith compare bertsmith-classifier/3 bertsmith-classifier@champion
    """
    tracker = tracker_of(home)
    from pipelines.registry.comparison.versus import versus

    found = versus(tracker, _store(home, store), first, second)
    if as_json:
        print(json.dumps(asdict(found), indent=2, ensure_ascii=False, default=str))
        return
    for line in _lines(found):
        print(line)


def _lines(found: "Versus") -> list[str]:
    lines = [f"{uri}: {figure or 'nothing was proved'}" for uri, figure in found.logged.items()]
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


def _tree(origin: "Origin", shown: set[tuple[str, str]]) -> "Tree":
    """An artifact that several were made from is told once, and named after that."""
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


def _draw(root: "Origin", page: Path, *, opened: bool) -> None:
    from pipelines.insight.lineage_page import lineage_page

    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(lineage_page(root), encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"the page must be a file that can be written, {page} is not ({error.strerror}); "
            "choose another --out"
        ) from None
    print(page)
    if opened:
        webbrowser.open(page.absolute().as_uri())


def _page_in(home: Path | None, title: str) -> Path:
    from flows.environment import home_folder

    name = title.removeprefix("models:/").replace("/", "-")
    return home_folder(home) / "pages" / f"lineage-{name}.html"


def _store(home: Path | None, store: str | None) -> "ArtifactStore":
    from pipelines.artifacts import ArtifactStore
    from pipelines.core.place import PlaceSettings

    place = PlaceSettings(home=str(home) if home else "", store=store or "")
    return ArtifactStore(place.store_url())
