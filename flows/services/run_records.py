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
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(ProcessIdentity.of(os.getpid()))) + "\n")
    partial.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def process_of_run(home: Path, flow_run_id: str) -> ProcessIdentity | None:
    """The process that worked on the run when it was last heard of; None: it left no record."""
    path = _path(home, flow_run_id)
    return ProcessIdentity(**json.loads(path.read_text())) if path.is_file() else None


def forget_run(home: Path, flow_run_id: str) -> None:
    """The run is over."""
    _path(home, flow_run_id).unlink(missing_ok=True)


def _path(home: Path, flow_run_id: str) -> Path:
    return home / _FOLDER / f"{flow_run_id}.json"
