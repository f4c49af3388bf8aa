"""JSON files of models and tokenizers, read so that a broken one is named."""

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object that the file holds; raises ValueError, naming it, where it holds none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of the encoding, too
        raise ValueError(f"{path} must hold JSON, but {error}; is it whole?") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object, found a {type(found).__name__}")
    return found
