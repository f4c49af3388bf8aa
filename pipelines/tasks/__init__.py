"""Tasks: labelled texts that an encoder is fine-tuned on."""

from pipelines.tasks.classification import LabelledTexts, build_task, names_of, read_split
from pipelines.tasks.encoding import EncodedTexts
from pipelines.tasks.labelled_file import read_labelled_file

__all__ = [
    "EncodedTexts",
    "LabelledTexts",
    "build_task",
    "names_of",
    "read_labelled_file",
    "read_split",
]
