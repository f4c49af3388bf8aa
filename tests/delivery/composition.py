"""The composition of services as its reader sees it, and what its first start writes."""

import re
from pathlib import Path
from typing import Any

import yaml

from tests.delivery.declared import INFRA

COMPOSE = INFRA / "compose.yaml"


def read(path: Path) -> dict[str, Any]:
    """As the composition's reader sees it: merged, with every variable left at its default."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", path.read_text(encoding="utf-8"))
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def written(passwords: Path, part: str) -> dict[str, str]:
    """The variables in one part of what a first start makes."""
    lines = (passwords / part / "environment").read_text().splitlines()
    return dict(line.partition("=")[::2] for line in lines)
