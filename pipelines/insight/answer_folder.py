"""A folder or URL with the shards of a batch prediction, and of no earlier one."""

import json
import posixpath
from typing import Final

import fsspec

from pipelines.artifacts import Artifact
from pipelines.core.errors import UserError

# Readers of a folder of Parquet files leave names with an underscore out.
LISTING: Final = "_predictions.json"


def copy_answers(predictions: Artifact, target: str) -> None:
    """Every shard under its name in `target`; each appears whole there.

    Shards that an earlier prediction wrote there and this one has not are removed at the end, by
    the list that lies beside them; nothing else is touched. Raises UserError where nobody can write
    there.
    """
    filesystem, folder = fsspec.url_to_fs(target)
    listing, names = posixpath.join(folder, LISTING), list(predictions.names())
    try:
        filesystem.makedirs(folder, exist_ok=True)
        before = _listed(filesystem, listing)
        # Whoever goes on after a kill must know of both.
        _list(filesystem, listing, predictions, sorted({*before, *names}))
        for name in names:
            place = posixpath.join(folder, name)
            partial_place = f"{place}.partial"
            filesystem.put_file(str(predictions.local(name)), partial_place)
            filesystem.mv(partial_place, place)
        for name in set(before) - set(names):
            place = posixpath.join(folder, name)
            if filesystem.exists(place):
                filesystem.rm_file(place)
        _list(filesystem, listing, predictions, names)
    except OSError as error:
        raise UserError(
            f"the answers must be copied to a folder or URL where this user may write, {target} "
            f"is none ({error.strerror or error}); they stand in {predictions.url}"
        ) from error


def _listed(filesystem: fsspec.AbstractFileSystem, listing: str) -> list[str]:
    if not filesystem.exists(listing):
        return []
    try:
        names = json.loads(filesystem.cat_file(listing))["files"]
    except (ValueError, KeyError, TypeError):
        return []  # somebody else's file
    return [posixpath.basename(str(name)) for name in names]


def _list(
    filesystem: fsspec.AbstractFileSystem, listing: str, predictions: Artifact, names: list[str]
) -> None:
    told = {"predictions": predictions.fingerprint, "files": names}
    filesystem.pipe_file(listing, json.dumps(told, indent=2).encode())
