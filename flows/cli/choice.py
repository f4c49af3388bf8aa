"""What a person chose on the command line, as overrides of a recipe."""

import json
from dataclasses import dataclass
from pathlib import Path

from pipelines.core.errors import UserError

OWN_TEXT_PRESET = "own-text"
OWN_ENCODER_PRESET = "own-encoder"
CONTINUE_PRESET = "continue"
DEFAULT_PRESET = "demo"
# Devlin et al., 2019, appendix A.3.
_GRID_OF_THE_PAPER = {
    "examples_per_step": [16, 32],
    "learning_rate": [5e-5, 3e-5, 2e-5],
    "num_epochs": [2, 3, 4],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A recipe and what options change of it."""

    recipe: str | None = None
    overrides: tuple[str, ...] = ()
    corpus: tuple[str, ...] = ()
    layout: str | None = None
    labels: str | None = None
    heldout: str | None = None
    task: str | None = None
    encoder: str | None = None
    is_pretraining: bool = False  # the encoder is one that a pretraining goes on from
    text_column: str | None = None
    second_text_column: str | None = None
    label_column: str | None = None
    seeds: int | None = None
    search: bool = False
    home: Path | None = None
    store: str | None = None
    num_workers: int | None = None
    training_workers: int | None = None

    @property
    def source(self) -> str:
        """The preset or file to read: one's own text or encoder has a preset of its own."""
        if self.recipe is None and self.encoder is not None:
            return CONTINUE_PRESET if self._goes_on else OWN_ENCODER_PRESET
        return self.recipe or (OWN_TEXT_PRESET if self.corpus else DEFAULT_PRESET)

    @property
    def _goes_on(self) -> bool:
        """Whether pretraining goes on from the encoder: with a text of one's own it does."""
        return self.is_pretraining or bool(self.corpus)

    def all_overrides(self) -> list[str]:
        """Options first, then `--set`, which has the last word.

        Raises UserError for a layout or a column without files that it could be of.
        """
        if self.layout is not None and not self.corpus:
            raise UserError(
                "--layout says what a document is in the files of --corpus, found no --corpus; "
                "give both, or set the layout in the recipe's corpus.sources"
            )
        of_file = (self.text_column, self.second_text_column, self.label_column, self.heldout)
        if self.labels is None and any(of_file):
            raise UserError(
                "--text-column, --second-text-column, --label-column and --heldout say more of the "
                "file of --labels, found no --labels; give it, too, or set them in the recipe's "
                "labelled.source"
            )
        options: dict[str, object] = {
            "place.home": str(self.home.absolute()) if self.home else None,
            "place.store": self.store,
            "place.num_workers": self.num_workers,
            "place.training_workers": self.training_workers,
            "labelled.family": self.task,
            "pretraining.encoder" if self._goes_on else "finetuning.encoder": self.encoder,
            "finetuning.num_seeds": self.seeds,
            "finetuning.search": _GRID_OF_THE_PAPER if self.search else None,
        }
        if self.corpus:
            layout = {} if self.layout is None else {"layout": self.layout}
            options["corpus.sources"] = [{"kind": "text", "paths": list(self.corpus), **layout}]
        if self.labels is not None:
            options["labelled.source"] = self._labelled_source(self.labels)
        given = [
            f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None
        ]
        return [*given, *self.overrides]

    def _labelled_source(self, labels: str) -> dict[str, str]:
        """A folder is a data set, whose splits have names; anything else is a file."""
        if Path(labels).is_dir():
            place = {"kind": "hugging_face", "dataset": labels, "heldout_split": self.heldout}
        else:
            place = {"kind": "labelled_file", "path": labels, "heldout_path": self.heldout}
        columns = {
            "text_column": self.text_column,
            "second_text_column": self.second_text_column,
            "label_column": self.label_column,
        }
        return {key: value for key, value in (place | columns).items() if value is not None}
