"""The command that runs the chain on a recipe, its options as settings, and the list of recipes."""

import json
import os
import shutil
import textwrap
from contextlib import nullcontext
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from flows.cli.options import (
    Home,
    LabelColumn,
    Overrides,
    SecondTextColumn,
    Store,
    Task,
    TextColumn,
    in_full,
    say,
)
from flows.environment import home_folder, prepare_flows, set_defaults
from flows.stopping import install_stop_handlers
from pipelines.errors import UserError, redacted
from pipelines.settings import DATABASE_NAME


def run(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="A preset (see `bertsmith recipes`) or a YAML file. [default: demo; own-text "
            "with --corpus, own-encoder with --encoder, continue with both]",
            show_default=False,
            callback=in_full,
        ),
    ] = None,
    overrides: Overrides = None,
    until: Annotated[
        str,
        typer.Option(
            metavar="STAGE",
            help="Stop after this stage: corpus, vocabulary, examples, pretraining, finetuning, "
            "evaluation or registration.",
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
            callback=in_full,
        ),
    ] = None,
    heldout: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Items to evaluate on; the name of a split if --labels is a dataset's folder. "
            "[default: a share of --labels]",
            callback=in_full,
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
            callback=in_full,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Register the fine-tuned model as this, and an encoder that is pretrained as "
            "<name>-encoder. [default: as the recipe says]",
            show_default=False,
        ),
    ] = None,
    home: Home = None,
    store: Store = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Tasks that run at once in the data stages. [default: 2]"),
    ] = None,
    training_workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Ray Train workers that share a training run. [default: one per GPU; without GPUs "
            "one per core for small encoders and one per node for large ones]",
        ),
    ] = None,
    show_recipe: Annotated[
        bool,
        typer.Option(
            "--show-recipe",
            help="Print every value of the recipe as YAML, to begin one of your own, and run "
            "nothing.",
        ),
    ] = False,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Print which stages would be reused and which built, and why, and run nothing.",
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Show no progress: warnings and the report alone.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            help="Show the log of the flow, a line with its time for each step of progress.",
        ),
    ] = False,
) -> None:
    """Build everything, from raw text to registered models.

    What exists already is reused, and interrupted work is resumed. Each model is verified: loaded
    in a new process, it has to reproduce its held-out score.

    Example: bertsmith run --corpus 'texts/*.txt' --labels reviews.csv --label-column stars
    """
    from pipelines.recipes.files import preset_names, read_recipe
    from pipelines.recipes.recipe import Until

    if until not in get_args(Until):
        raise UserError(f"--until {until} is not one of {', '.join(get_args(Until))}")
    if quiet and verbose:
        raise UserError("--quiet and --verbose contradict each other; leave one of them out")
    continues = encoder is not None and (bool(corpus) or until == "pretraining")
    settings: dict[str, object] = {
        "runtime.home": str(home_folder(home)) if home else None,
        "runtime.store": store,
        "runtime.num_workers": workers,
        "runtime.training_workers": training_workers,
        "corpus.sources": _corpus(corpus, layout, corpus_column),
        "dataset.family": task,
        "dataset.source": labelled_source(
            labels, heldout, text_column, second_text_column, label_column
        ),
        "pretraining.encoder" if continues else "finetuning.encoder": encoder,
        "registration.classifier_name": name,
        "registration.encoder_name": None if name is None else f"{name}-encoder",
    }
    rate = "pretraining.learning_rate"
    is_of_new_encoders = (
        recipe is not None
        and recipe != "continue"
        and (recipe in preset_names() or recipe.replace("_", "-") in preset_names())
    )
    if (
        continues
        and is_of_new_encoders
        and not any(each.startswith(rate) for each in overrides or ())
    ):
        raise UserError(
            f"{recipe} pretrains new encoders, at a rate at which {encoder} would forget what it "
            f"knows; leave {recipe} out (--task names a task), or set {rate}"
        )
    if recipe is None and encoder is not None:
        recipe = "continue" if continues else "own-encoder"
    whole = read_recipe(
        recipe or ("own-text" if corpus else "demo"), [*as_overrides(settings), *(overrides or ())]
    )
    if show_recipe:
        print(whole.to_yaml(), end="")
        return
    if plan:
        _print_plan(whole, until, home_folder(home))
        return
    _run(whole, until, home_folder(home), quiet=quiet, verbose=verbose)


def _print_plan(recipe: Any, until: Any, home: Path) -> None:
    set_defaults(home)
    from flows.checks import check_run

    check_run(recipe, until)
    from flows.plan import planned_stages

    stages = planned_stages(recipe, until)
    width = max(len(stage.title) for stage in stages)
    for stage in stages:
        print(f"{stage.title:<{width}}  {stage.outcome:<9}  {stage.reason}")
    if until == "registration":
        say("Registration follows every time; a model that is registered keeps its version.")


def _run(recipe: Any, until: Any, home: Path, *, quiet: bool, verbose: bool) -> None:
    install_stop_handlers()
    if verbose:
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "INFO")
    set_defaults(home)
    from flows.checks import check_run

    check_run(recipe, until)
    registry = redacted(recipe.runtime.named_tracker()) or home / DATABASE_NAME
    print(f"Recipe {recipe.name} (--show-recipe prints it whole); registry: {registry}", flush=True)
    wait_for_api = prepare_flows(home)  # it starts up during the imports below

    from flows.end_to_end import end_to_end
    from flows.progress import progress_on_terminal
    from flows.report import print_report
    from pipelines.cluster import disconnect

    wait_for_api()
    try:
        with nullcontext() if verbose else progress_on_terminal(is_quiet=quiet):
            report = end_to_end(recipe, until)
    finally:
        disconnect()
    print_report(report)


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
    if not labels.strip():
        raise UserError("--labels is empty; name a file of labelled items")
    if Path(labels).is_dir():
        source = {"kind": "hugging_face", "dataset": labels, "heldout_split": heldout}
    else:
        source = {"kind": "labelled_file", "path": labels, "heldout_path": heldout}
    return {key: value for key, value in (source | columns).items() if value is not None}


def _corpus(
    paths: list[str] | None, layout: str | None, column: str | None
) -> list[dict[str, object]] | None:
    """The setting corpus.sources; None without `paths`."""
    options = {"layout": layout, "text_field": column}
    given = {name: value for name, value in options.items() if value is not None}
    if paths:
        return [{"kind": "text", "paths": paths, **given}]
    if given:
        raise UserError(
            "--layout and --corpus-column require --corpus; for other sources set layout or "
            "text_field in the recipe's corpus.sources"
        )
    return None


def recipes() -> None:
    """List the presets, and what each is for.

    `bertsmith run NAME --show-recipe` prints every value of one.

    Example: bertsmith recipes
    """
    from pipelines.recipes.files import preset_names, preset_text

    names = preset_names()
    width = max(map(len, names))
    for name in names:
        # A preset's file opens with a comment, whose first paragraph is its purpose.
        comment = takewhile(lambda line: line.startswith("# "), preset_text(name).splitlines())
        purpose = " ".join(line.lstrip("# ") for line in comment)
        lines = textwrap.wrap(purpose, max(40, shutil.get_terminal_size().columns - width - 2))
        for first, line in zip((name, *[""] * len(lines)), lines, strict=False):
            print(f"{first:<{width}}  {line}")
