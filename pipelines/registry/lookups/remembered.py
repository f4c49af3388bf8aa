"""What a home's own registry answered, remembered for as long as nobody writes to it.

Importing MLflow and opening its database takes longer than a first answer should. The database is
one SQLite file: its header counts the transactions that changed it
(https://www.sqlite.org/fileformat.html, sections 1.3.7 and 1.3.3). While file and count are the
same, so is the answer to the same question. A package's bytes are checked each time, remembered or
not.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from pipelines.registry.serving.integrity import SEAL_FILE

_FILE: Final = "lookups.json"
_MOST_ANSWERS: Final = 100
_HEADER_BYTES: Final = 100
_MAGIC: Final = b"SQLite format 3\0"
_ROLLBACK_JOURNAL: Final = 1  # of the header's bytes 18 and 19; with a write-ahead log it is 2


class Answer(NamedTuple):
    """The package that a name stood for."""

    called: str  # name and version
    package: Path
    digest: str  # of the list of what its files hash to, as the registry has it


def state_of(database: Path) -> list[int] | None:
    """What changes when anybody writes to the database; None where that cannot be known."""
    try:
        with database.open("rb") as file:
            header = file.read(_HEADER_BYTES)
            told = os.fstat(file.fileno())
    except OSError:
        return None
    is_known = header.startswith(_MAGIC) and set(header[18:20]) == {_ROLLBACK_JOURNAL}
    # Somebody is writing, or was killed while doing so.
    if not is_known or Path(f"{database}-journal").exists():
        return None
    changes = int.from_bytes(header[24:28], "big")
    return [told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns, changes]


def remembered(database: Path, question: str) -> Answer | None:
    """What the registry answered to `question` since it last changed."""
    known, state = _known(database), state_of(database)
    if state is None or known.get("state") != state:
        return None
    found = known.get("answers", {}).get(question)
    return None if found is None else Answer(found[0], Path(found[1]), found[2])


def remember(
    database: Path, question: str, called: str, package: Path, state: list[int] | None
) -> None:
    """Keep the answer, unless the registry changed since `state` was read, before it was asked."""
    if state is None or state_of(database) != state:
        return
    known = _known(database)
    answers = known.get("answers", {}) if known.get("state") == state else {}
    digest = hashlib.sha256((package / SEAL_FILE).read_bytes()).hexdigest()
    answers = dict(list(answers.items())[1 - _MOST_ANSWERS :])
    answers[question] = [called, str(package), digest]
    place = database.with_name(_FILE)
    draft = place.with_name(f"{_FILE}.{os.getpid()}")
    try:
        draft.write_text(json.dumps({"state": state, "answers": answers}), encoding="utf-8")
        draft.replace(place)
    except OSError:  # somebody else's home: the next answer takes as long
        draft.unlink(missing_ok=True)


def _known(database: Path) -> dict[str, Any]:
    try:
        known = json.loads(database.with_name(_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
