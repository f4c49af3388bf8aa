"""Which process works on which flow run: how a run that died is told from one that goes on.

Each run of this home leaves a file while it runs. A process that is killed leaves it behind, and
that is the evidence: a run is declared dead only where its own process is known to be.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from flows.services.processes.identity import ProcessIdentity
from pipelines.artifacts.attempts.commit import write_to_disk

_FOLDER = "runs"


@contextmanager
def recorded_run(flow_run_id: str | None) -> Iterator[None]:
    """Leave a sign of life in the home ($BERTSMITH_HOME) while the block runs."""
    home = os.environ.get("BERTSMITH_HOME")
    if not home or not flow_run_id:
        yield  # no home, hence no services that would ask
        return
    path = _path(Path(home), flow_run_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_to_disk(path, json.dumps(asdict(ProcessIdentity.of(os.getpid()))) + "\n")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def process_of_run(home: Path, flow_run_id: str) -> ProcessIdentity | None:
    """The process that worked on the run when it was last heard of; None: it left no record that
    can be read."""
    return _process_in(_path(home, flow_run_id))


def set_aside_unreadable_records(home: Path) -> list[str]:
    """Rename the records that cannot be read, so that nobody stumbles over them; a sentence each.

    A disk that failed or was full leaves such a record. Whose process it named nobody knows, so the
    run is left alone.
    """
    told = []
    for path in sorted((home / _FOLDER).glob("*.json")):
        if _process_in(path) is None and path.is_file():
            aside = path.with_suffix(".unreadable")
            path.replace(aside)
            told.append(
                f"The record of the flow run {path.stem} cannot be read and is set aside as "
                f"{aside}; where Prefect still says that it runs and it does not, cancel it there."
            )
    return told


def forget_run(home: Path, flow_run_id: str) -> None:
    """The run is over."""
    _path(home, flow_run_id).unlink(missing_ok=True)


def _process_in(path: Path) -> ProcessIdentity | None:
    try:
        return ProcessIdentity(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _path(home: Path, flow_run_id: str) -> Path:
    return home / _FOLDER / f"{flow_run_id}.json"
