"""Folders for checkpoints on their way, in the temporary folder; none outlives its process long."""

import hashlib
import shutil
import tempfile
from pathlib import Path

from pipelines.core.errors import UserError
from pipelines.core.processes import ProcessIdentity

_PREFIX = "bertsmith-checkpoint-"


def scratch_folder(num_bytes: int = 0) -> Path:
    """A new folder of this process; who asks for it removes it.

    Raises UserError where its disk has no room for so many bytes.
    """
    parent = tempfile.gettempdir()
    free = shutil.disk_usage(parent).free
    if free < num_bytes:
        raise UserError(
            f"the temporary folder {parent} must have room for a copy of a checkpoint "
            f"({num_bytes / 2**20:,.0f} MiB), found {free / 2**20:,.0f} MiB free; free some, or "
            "name another folder in TMPDIR"
        )
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{_name(ProcessIdentity.current())}-"))


def remove_abandoned() -> None:
    """Remove the folders of this machine's processes that were killed before they did."""
    here = ProcessIdentity.current()
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        _, _, name = folder.name.partition(_PREFIX)
        machine, pid, started, *_ = [*name.split("-"), "", "", ""]
        if not (pid.isdecimal() and started.isdecimal()):
            continue
        owner = here.model_copy(update={"pid": int(pid), "started": int(started)})
        # Of another machine, or another container, nobody here can tell.
        if _name(owner).startswith(f"{machine}-") and owner.is_alive() is False:
            shutil.rmtree(folder, ignore_errors=True)


def _name(owner: ProcessIdentity) -> str:
    machine = hashlib.sha256(owner.machine.encode()).hexdigest()[:12]
    return f"{machine}-{owner.pid}-{owner.started}"
