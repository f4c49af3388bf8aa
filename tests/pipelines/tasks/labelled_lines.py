"""Files of labelled items, written and read again."""

from pathlib import Path
from typing import Any

from pipelines.stages.dataset.items import read_labelled
from pipelines.stages.dataset.settings import LabelledFile
from pipelines.tasks import family


def items(path: Path, name: str, **settings: Any) -> list[dict]:
    source = LabelledFile(path=str(path), **settings)
    return [each.item for each in read_labelled(str(path), family(name), source)]


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
