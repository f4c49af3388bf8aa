"""The options that choose and change a recipe, declared once for all commands."""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from flows.cli.registry import Home, Overrides, Store
from flows.environment import home_folder
from pipelines.config.errors import UserError

OWN_TEXT_PRESET = "own-text"
OWN_ENCODER_PRESET = "own-encoder"
CONTINUE_PRESET = "continue"
DEFAULT_PRESET = "demo"
# Devlin et al., 2019, appendix A.3, around the rate and the epochs that the recipe has.
_GRID_OF_THE_PAPER = {
    "global_batch_size": [16, 32],
    "learning_rate": "auto",
    "num_epochs": "auto",
}


def _presets(incomplete: str) -> list[str]:
    from pipelines.recipes.files import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A recipe and the options that change it; each field but the last is an option."""

    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="A preset (see `bertsmith recipes list`) or a YAML file. "
            "[default: demo; own-text with --corpus]",
            show_default=False,
            autocompletion=_presets,
        ),
    ] = None
    overrides: Overrides = None
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Your own files in place of the recipe's sources: plain text, CSV, TSV, JSONL, "
            "Parquet, HTML or PDF, by their names.",
        ),
    ] = None
    layout: Annotated[
        str | None,
        typer.Option(
            metavar="LAYOUT",
            help="What a document is in the plain text files of --corpus: file, blank_line (a "
            "block between blank lines), line, sentences (one a line, blank lines between "
            "documents), headings (' = Title = '); page: a page of the PDF files. [default: file]",
        ),
    ] = None
    corpus_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Column of the tables of --corpus that holds the text. [default: text]",
            show_default=False,
        ),
    ] = None
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Your labelled items to fine-tune on: CSV, TSV, JSONL or Parquet; for --task "
            "tagging also CoNLL's columns, for question-answering SQuAD's JSON. A folder: a "
            "Hugging Face dataset.",
        ),
    ] = None
    heldout: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Items to evaluate on; the name of a split if --labels is a dataset's folder. "
            "[default: a share of --labels]",
        ),
    ] = None
    task: Annotated[
        str | None,
        typer.Option(
            metavar="FAMILY",
            help="The task that --labels are for: classification, multi-label, regression, "
            "multiple-choice, tagging, question-answering, sentence-embedding, or the .py file "
            "of a task of your own. [default: the recipe's]",
            show_default=False,
        ),
    ] = None
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Start from this encoder: a folder (ours or a published BERT), "
            "models:/name@alias, or a fingerprint of the store. `pretrain` and --corpus pretrain "
            "it further; otherwise nothing is pretrained.",
        ),
    ] = None
    text_column: Annotated[
        str | None, typer.Option(help="Column of --labels that holds the text.")
    ] = None
    second_text_column: Annotated[
        str | None, typer.Option(help="Column of --labels with the second text of a pair.")
    ] = None
    label_column: Annotated[
        str | None, typer.Option(help="Column of --labels that holds the label.")
    ] = None
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100,
            help="Train with this many seeds, report mean and deviation, and keep the best. "
            "[default: 1]",
            show_default=False,
        ),
    ] = None
    search: Annotated[
        bool,
        typer.Option(
            "--search",
            help="Search the paper's grid around the recipe's values: batches of 16 and 32; its "
            "learning rate, 0.6 and 0.4 times that; its epochs, a third fewer and a third more. "
            "Other values with --set finetuning.search.",
        ),
    ] = False
    home: Home = None
    store: Store = None
    workers: Annotated[
        int | None, typer.Option(min=1, help="Tasks that run at once in the data stages.")
    ] = None
    training_workers: Annotated[
        int | None, typer.Option(min=1, help="Ray Train workers that share a training run.")
    ] = None
    is_pretraining: bool = False  # pretraining continues from the encoder

    @property
    def source(self) -> str:
        """The preset or file to read: --corpus and --encoder have presets of their own."""
        if self.recipe is None and self.encoder is not None:
            return CONTINUE_PRESET if self._pretrains_further else OWN_ENCODER_PRESET
        return self.recipe or (OWN_TEXT_PRESET if self.corpus else DEFAULT_PRESET)

    @property
    def _pretrains_further(self) -> bool:
        return self.is_pretraining or bool(self.corpus)

    def all_overrides(self) -> list[str]:
        """Options first, then `--set`, which takes precedence.

        Raises UserError for options that describe files if no files are given.
        """
        if not self.corpus and (self.layout is not None or self.corpus_column is not None):
            raise UserError(
                "--layout and --corpus-column require --corpus; for other sources set layout or "
                "text_field in the recipe's corpus.sources"
            )
        of_file = (self.text_column, self.second_text_column, self.label_column, self.heldout)
        if self.labels is None and any(of_file):
            raise UserError(
                "--text-column, --second-text-column, --label-column and --heldout require "
                "--labels; for other sources set them in the recipe's dataset.source"
            )
        options: dict[str, object] = {
            "runtime.home": str(home_folder(self.home)) if self.home else None,
            "runtime.store": self.store,
            "runtime.num_workers": self.workers,
            "runtime.training_workers": self.training_workers,
            "dataset.family": self.task,
            "pretraining.encoder" if self._pretrains_further else "finetuning.encoder": (
                self.encoder
            ),
            "finetuning.num_seeds": self.seeds,
            "finetuning.search": _GRID_OF_THE_PAPER if self.search else None,
        }
        if self.corpus:
            said = {"layout": self.layout, "text_field": self.corpus_column}
            source = {key: value for key, value in said.items() if value is not None}
            options["corpus.sources"] = [{"kind": "text", "paths": list(self.corpus), **source}]
        if self.labels is not None:
            options["dataset.source"] = self._labelled_source(self.labels)
        given = [
            f"{key}={json.dumps(value, ensure_ascii=False)}"
            for key, value in options.items()
            if value is not None
        ]
        return [*given, *(self.overrides or ())]

    def _labelled_source(self, labels: str) -> dict[str, str]:
        """A folder is a dataset, whose splits have names; anything else is a file."""
        if Path(labels).is_dir():
            source = {"kind": "hugging_face", "dataset": labels, "heldout_split": self.heldout}
        else:
            source = {"kind": "labelled_file", "path": labels, "heldout_path": self.heldout}
        columns = {
            "text_column": self.text_column,
            "second_text_column": self.second_text_column,
            "label_column": self.label_column,
        }
        return {key: value for key, value in (source | columns).items() if value is not None}


def choosing(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `Choice` except `without`; the choice is its first argument.

    Typer reads a command's options from its signature, which is built here.
    """
    names = [f.name for f in fields(Choice) if f.name not in (*without, "is_pretraining")]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def with_options(**given: Any) -> None:
            choice = Choice(**{name: given.pop(name) for name in names})
            command(choice, **given)

        defaults = {f.name: f.default for f in fields(Choice)}
        hints = get_type_hints(Choice, include_extras=True)
        _, *own = inspect.signature(command).parameters.values()
        parameters = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hints[name]
            )
            for name in names
        ]
        parameters += [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        with_options.__doc__ = command.__doc__
        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {each.name: each.annotation for each in parameters}
        return with_options

    return decorate
