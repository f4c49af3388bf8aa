"""Temporary folders, named after the process that uses them."""

import hashlib
import shutil
import tempfile
from pathlib import Path

from pipelines.config.errors import UserError
from pipelines.config.processes import ProcessIdentity

_PREFIX = "bertsmith-scratch-"


def scratch_folder(num_bytes: int = 0) -> Path:
    """A new temporary folder, which the caller removes; those of killed processes are removed here.

    Raises UserError if its disk has no room for `num_bytes`.
    """
    _remove_abandoned()
    parent = tempfile.gettempdir()
    free = shutil.disk_usage(parent).free
    if free < num_bytes:
        raise UserError(
            f"the temporary folder {parent} is too full for a copy of a checkpoint: "
            f"{num_bytes / 2**20:,.0f} MiB are needed, {free / 2**20:,.0f} MiB are free; free "
            "some, or name another folder in TMPDIR"
        )
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{_name(ProcessIdentity.current())}-"))


def _remove_abandoned() -> None:
    here = ProcessIdentity.current()
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        _, _, name = folder.name.partition(_PREFIX)
        machine, pid, started, *_ = [*name.split("-"), "", "", ""]
        if not (pid.isdecimal() and started.isdecimal()):
            continue
        owner = here.model_copy(update={"pid": int(pid), "started": int(started)})
        # Processes of another machine or container cannot be looked up here.
        if _name(owner).startswith(f"{machine}-") and owner.is_alive() is False:
            shutil.rmtree(folder, ignore_errors=True)


def _name(owner: ProcessIdentity) -> str:
    machine = hashlib.sha256(owner.machine.encode()).hexdigest()[:12]
    return f"{machine}-{owner.pid}-{owner.started}"
