"""The command that runs the chain on a recipe, and the options that change the recipe."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from flows.cli.registry import (
    Home,
    LabelColumn,
    Overrides,
    SecondTextColumn,
    Store,
    Task,
    TextColumn,
)
from flows.environment import home_folder, prepare_flows, set_defaults
from flows.stopping import stop_in_order
from pipelines.errors import UserError

if TYPE_CHECKING:
    from pipelines.recipes.recipe import Recipe

# Devlin et al., 2019, appendix A.3, around the rate and the epochs that the recipe has.
_GRID_OF_THE_PAPER = {
    "global_batch_size": [16, 32],
    "learning_rate": "auto",
    "num_epochs": "auto",
}


def _presets(incomplete: str) -> list[str]:
    from pipelines.recipes.files import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


def _stages(incomplete: str = "") -> list[str]:
    from pipelines.recipes.recipe import Until

    return [name for name in get_args(Until) if name.startswith(incomplete)]


def run(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="A preset (see `bertsmith recipes list`) or a YAML file. [default: demo; own-text "
            "with --corpus, own-encoder with --encoder, continue with both]",
            show_default=False,
            autocompletion=_presets,
        ),
    ] = None,
    overrides: Overrides = None,
    until: Annotated[
        str,
        typer.Option(
            metavar="STAGE",
            help="Stop after this stage: corpus, vocabulary, examples, pretraining, finetuning, "
            "evaluation or registration.",
            autocompletion=_stages,
        ),
    ] = "registration",
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Your own files in place of the recipe's sources: plain text, CSV, TSV, JSONL, "
            "Parquet, HTML or PDF, by their names.",
        ),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            metavar="LAYOUT",
            help="What a document is in the plain text files of --corpus: file, blank_line (a "
            "block between blank lines), line, sentences (one a line, blank lines between "
            "documents), headings (' = Title = '); page: a page of the PDF files. [default: file]",
        ),
    ] = None,
    hard_wrapped: Annotated[
        bool,
        typer.Option(
            "--hard-wrapped",
            help="Lines of the plain text files of --corpus were broken to fit a page, as in "
            "Project Gutenberg's books: only a blank line ends a paragraph.",
        ),
    ] = False,
    corpus_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Column of the tables of --corpus that holds the text. [default: text]",
            show_default=False,
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Your labelled items to fine-tune on: CSV, TSV, JSONL or Parquet; for --task "
            "tagging also CoNLL's columns, for question-answering SQuAD's JSON. A folder: a "
            "Hugging Face dataset.",
        ),
    ] = None,
    heldout: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Items to evaluate on; the name of a split if --labels is a dataset's folder. "
            "[default: a share of --labels]",
        ),
    ] = None,
    task: Task = None,
    text_column: TextColumn = None,
    second_text_column: SecondTextColumn = None,
    label_column: LabelColumn = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Start from this encoder: a folder (ours or a published BERT), "
            "models:/name@alias, or a fingerprint of the store. With --corpus or --until "
            "pretraining it is pretrained further; otherwise nothing is pretrained.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100,
            help="Fine-tune with this many seeds, report mean and deviation, and keep the best. "
            "[default: 1]",
            show_default=False,
        ),
    ] = None,
    search: Annotated[
        bool,
        typer.Option(
            "--search",
            help="Search the paper's grid around the recipe's values: batches of 16 and 32; its "
            "learning rate, 0.6 and 0.4 times that; its epochs, a third fewer and a third more. "
            "Other values with --set finetuning.search.",
        ),
    ] = False,
    home: Home = None,
    store: Store = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Tasks that run at once in the data stages.")
    ] = None,
    training_workers: Annotated[
        int | None, typer.Option(min=1, help="Ray Train workers that share a training run.")
    ] = None,
    show_recipe: Annotated[
        bool,
        typer.Option(
            "--show-recipe", help="Print every value of the recipe as YAML and run nothing."
        ),
    ] = False,
) -> None:
    """Build everything, from raw text to registered models.

    What exists already is reused, and interrupted work is resumed. Each model is verified: loaded
    in a new process, it has to reproduce its held-out score.

    Example: bertsmith run --corpus 'texts/*.txt' --labels reviews.csv --label-column stars
    """
    if until not in _stages():
        raise UserError(f"--until {until}: no such stage; choose one of {', '.join(_stages())}")
    continues = encoder is not None and (bool(corpus) or until == "pretraining")
    settings: dict[str, object] = {
        "runtime.home": str(home_folder(home)) if home else None,
        "runtime.store": store,
        "runtime.num_workers": workers,
        "runtime.training_workers": training_workers,
        "corpus.sources": _corpus(corpus, layout, corpus_column, hard_wrapped),
        "dataset.family": task,
        "dataset.source": labelled_source(
            labels, heldout, text_column, second_text_column, label_column
        ),
        "pretraining.encoder" if continues else "finetuning.encoder": encoder,
        "finetuning.num_seeds": seeds,
        "finetuning.search": _GRID_OF_THE_PAPER if search else None,
    }
    if recipe is None and encoder is not None:
        recipe = "continue" if continues else "own-encoder"
    execute(
        recipe or ("own-text" if corpus else "demo"),
        [*as_overrides(settings), *(overrides or ())],
        until,
        home_folder(home),
        show_recipe=show_recipe,
    )


def execute(
    source: str, overrides: list[str], until: Any, home: Path, *, show_recipe: bool = False
) -> None:
    """Run the recipe up to the stage `until`, or with `show_recipe` only print it.

    Raises UserError for a recipe, a runtime setting or an input that cannot work, before anything
    starts.
    """
    from pipelines.recipes.files import read_recipe

    recipe = read_recipe(source, overrides)
    if show_recipe:
        print(recipe.to_yaml(), end="")
        return
    stop_in_order()
    set_defaults(home)
    from flows.checks import check_run

    check_run(recipe, until)
    print(_changes(recipe), flush=True)
    wait_for_api = prepare_flows(home)  # it starts up during the imports below

    from flows.end_to_end import end_to_end
    from flows.reporting.progress_line import progress_on_terminal
    from flows.reporting.report import print_report
    from pipelines.cluster import disconnect
    from pipelines.stage import open_tracker

    wait_for_api()
    try:
        with progress_on_terminal():
            report = end_to_end(recipe, until)
    finally:
        disconnect()
    print_report(report, open_tracker(recipe.runtime).shown_uri)


def as_overrides(settings: dict[str, object]) -> list[str]:
    """`dotted.path=value` of each setting that has one."""
    return [
        f"{path}={json.dumps(value, ensure_ascii=False)}"
        for path, value in settings.items()
        if value is not None
    ]


def labelled_source(
    labels: str | None,
    heldout: str | None,
    text_column: str | None,
    second_text_column: str | None,
    label_column: str | None,
) -> dict[str, str] | None:
    """The setting dataset.source: a folder is a dataset, whose splits have names.

    None without `labels`. Raises UserError if the other options are given without them.
    """
    columns = {
        "text_column": text_column,
        "second_text_column": second_text_column,
        "label_column": label_column,
    }
    if labels is None:
        if heldout or any(columns.values()):
            raise UserError(
                "--text-column, --second-text-column, --label-column and --heldout require "
                "--labels; for other sources set them in the recipe's dataset.source"
            )
        return None
    if Path(labels).is_dir():
        source = {"kind": "hugging_face", "dataset": labels, "heldout_split": heldout}
    else:
        source = {"kind": "labelled_file", "path": labels, "heldout_path": heldout}
    return {key: value for key, value in (source | columns).items() if value is not None}


def _corpus(
    paths: list[str] | None, layout: str | None, column: str | None, hard_wrapped: bool
) -> list[dict[str, object]] | None:
    """The setting corpus.sources; None without `paths`."""
    if not paths:
        if layout is not None or column is not None or hard_wrapped:
            raise UserError(
                "--layout, --hard-wrapped and --corpus-column require --corpus; for other sources "
                "set layout, hard_wrapped or text_field in the recipe's corpus.sources"
            )
        return None
    source: dict[str, object] = {"kind": "text", "paths": paths}
    if layout is not None:
        source["layout"] = layout
    if column is not None:
        source["text_field"] = column
    if hard_wrapped:
        source["hard_wrapped"] = True
    return [source]


def _changes(recipe: "Recipe") -> str:
    """The recipe's name and what differs from the defaults, a line for each section."""
    from pipelines.recipes.files import differences

    usual = type(recipe)().model_dump(mode="json")
    lines = [f"Recipe {recipe.name} (--show-recipe prints every value)"]
    for section, values in recipe.model_dump(mode="json").items():
        if isinstance(values, dict) and (changed := differences(values, usual[section])):
            shown = ", ".join(f"{path}: {value}" for path, value in changed.items())
            lines.append(f"  {section:<12} {shown}")
    return "\n".join(lines)
