"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Home = Annotated[
    Path | None,
    typer.Option(help="Folder of store, registry and logs. [default: $BERTSMITH_HOME, .bertsmith]"),
]
Store = Annotated[
    str | None, typer.Option(help="Where artifacts are kept: a folder or a URL (s3://…).")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Change one value of the recipe, as in pretraining.mask_fraction=0.2; repeatable.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]
