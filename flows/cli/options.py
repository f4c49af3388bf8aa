"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Home = Annotated[
    Path | None,
    typer.Option(help="Folder of store, registry and logs. [default: $BERTSMITH_HOME, .bertsmith]"),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Change one value of the recipe, as in pretraining.mask_fraction=0.2; repeatable.",
    ),
]
Corpus = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Your own plain text files in place of the recipe's."),
]
Layout = Annotated[
    str | None,
    typer.Option(
        metavar="LAYOUT",
        help="What a document is in the files of --corpus: file, blank_line (a block between blank "
        "lines), line, sentences (one a line, blank lines between documents), headings "
        "(' = Title = '), or auto: found out and said. [default: auto]",
    ),
]
Store = Annotated[
    str | None, typer.Option(help="Where artifacts are kept: a folder or a URL (s3://…).")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Tasks at once in the data stages.")]
TrainingWorkers = Annotated[
    int | None, typer.Option(min=1, help="Ray Train workers that share a training.")
]
ShowRecipe = Annotated[
    bool,
    typer.Option("--show-recipe", help="Print every value of the recipe as YAML and run nothing."),
]
Labels = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Your labelled items to fine-tune on: CSV, TSV, JSONL or Parquet; for --task tagging "
        "also CoNLL's columns, for question-answering SQuAD's JSON. A folder: a Hugging Face data "
        "set.",
    ),
]
Heldout = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Items to evaluate on; of a data set's folder the split. [default: a share of "
        "--labels]",
    ),
]
Task = Annotated[
    str | None,
    typer.Option(
        metavar="FAMILY",
        help="What is learned of --labels: classification, multi-label, regression, "
        "multiple-choice, tagging, question-answering or sentence-embedding. [default: the "
        "recipe's]",
        show_default=False,
    ),
]
Encoder = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="Begin with this encoder: a folder (ours or a published BERT), models:/name@alias, or "
        "a fingerprint of the store. With --corpus it is pretrained further; without, nothing is "
        "pretrained.",
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=100,
        help="Train with so many seeds, tell mean and deviation, and take the best. [default: 1]",
        show_default=False,
    ),
]
Search = Annotated[
    bool,
    typer.Option(
        "--search",
        help="Try batches of 16 and 32, rates of 5e-5, 3e-5 and 2e-5, and 2, 3 and 4 epochs, the "
        "paper's grid, and take the best; other values with --set finetuning.search.",
    ),
]
TextColumn = Annotated[str | None, typer.Option(help="Column of FILE that holds the text.")]
SecondTextColumn = Annotated[
    str | None, typer.Option(help="Column of FILE with the second text of a pair.")
]
LabelColumn = Annotated[str | None, typer.Option(help="Column of FILE that holds the label.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]
