"""What a home's own registry answered, remembered for as long as nobody writes to it.

Importing MLflow and opening its database takes longer than a first answer should. The database is
one SQLite file: while the tables that hold models, versions and aliases are the same, so is the
answer to the same question, whatever runs log meanwhile. A package's bytes are checked each time,
remembered or not.
"""

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from pipelines.registry.serving.integrity import SEAL_FILE

_FILE: Final = "lookups.json"
_MOST_ANSWERS: Final = 100
# What a name stands for, and where its files are: MLflow's names for its tables begin so.
_TABLES: Final = ("registered_model", "model_version", "logged_model")
_MOST_SECONDS: Final = 0.5  # for somebody who is writing


class Answer(NamedTuple):
    """The package that a name stood for."""

    called: str  # name and version
    package: Path
    digest: str  # of the list of what its files hash to, as the registry has it


def state_of(database: Path) -> str | None:
    """What changes when anybody writes to the registry; None where that cannot be known."""
    place = f"file:{quote(str(database.absolute()))}?mode=ro"
    found = hashlib.sha256()
    try:
        with closing(sqlite3.connect(place, uri=True, timeout=_MOST_SECONDS)) as connection:
            connection.execute("begin")  # all tables at one moment
            names = [name for (name,) in connection.execute(
                "select name from sqlite_master where type = 'table' order by name"
            ) if name.startswith(_TABLES)]  # fmt: skip
            for name in names:
                found.update(f"{name}\n".encode())
                for row in connection.execute(f'select * from "{name}"'):
                    found.update(f"{row!r}\n".encode())
    except sqlite3.Error:
        return None
    return found.hexdigest() if names else None


def remembered(database: Path, question: str) -> Answer | None:
    """What the registry answered to `question` since it last changed."""
    known, state = _known(database), state_of(database)
    if state is None or known.get("state") != state:
        return None
    found = known.get("answers", {}).get(question)
    return None if found is None else Answer(found[0], Path(found[1]), found[2])


def remember(database: Path, found: Iterable[tuple[str, str, Path]], state: str | None) -> None:
    """Keep answers: what was asked, what it is called, where its package lies.

    Nothing is kept where the registry changed since `state` was read, before it was asked.
    """
    if state is None or state_of(database) != state:
        return
    known = _known(database)
    answers = known.get("answers", {}) if known.get("state") == state else {}
    for question, called, package in found:
        digest = hashlib.sha256((package / SEAL_FILE).read_bytes()).hexdigest()
        answers.pop(question, None)
        answers[question] = [called, str(package), digest]
    kept = dict(list(answers.items())[-_MOST_ANSWERS:])
    place = database.with_name(_FILE)
    draft = place.with_name(f"{_FILE}.{os.getpid()}")
    try:
        draft.write_text(json.dumps({"state": state, "answers": kept}), encoding="utf-8")
        draft.replace(place)
    except OSError:  # somebody else's home: the next answer takes as long
        draft.unlink(missing_ok=True)


def _known(database: Path) -> dict[str, Any]:
    try:
        known = json.loads(database.with_name(_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
