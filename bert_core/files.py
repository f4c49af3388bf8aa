"""A model's files: folders that are whole or absent, JSON, tensors; every fault names its file."""

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

# The start of the pointer that Git LFS leaves for a file that was not fetched.
_POINTER: Final = b"version https://git-lfs.github.com/spec/"
_CALLED: Final = {
    dict: "an object", list: "a list", str: "a text", int: "a whole number", bool: "true or false",
}  # fmt: skip


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object that the file holds; raises ValueError, naming it, if it holds none."""
    value = read_json_value(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path} is not a JSON object but a {type(value).__name__}")
    return value


def read_optional_json(path: Path) -> dict[str, Any]:
    """The JSON object that the file holds, an empty one without a file; raises as `read_json`."""
    return read_json(path) if path.is_file() else {}


def read_json_value(path: Path) -> Any:
    """Whatever JSON the file holds; raises ValueError, naming it, if it holds none."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); is it complete?") from error


def read_text(path: Path) -> str:
    """What a UTF-8 file holds; raises ValueError, naming it, if it is missing or no text."""
    check_fetched(path)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error}); is it complete?") from error


def check_fetched(path: Path) -> None:
    """Return where `path` is a file that may hold what its name says.

    Raises ValueError if there is no file, or the pointer that Git LFS leaves in its place.
    """
    if not path.is_file():
        raise ValueError(f"{path.parent} has no {path.name}; is it complete?")
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise ValueError(
                f"{path} is only a Git LFS pointer; fetch the file with `git lfs pull` or download "
                "it again"
            )


def entry(values: dict[str, Any], key: str, kind: type[T], path: Path) -> T | None:
    """`values[key]` of the JSON file `path`; None if it is missing or null.

    Raises ValueError, naming the file, for a value of another kind.
    """
    value = values.get(key)
    is_bool = isinstance(value, bool)
    if value is None or (isinstance(value, kind) and (is_bool == (kind is bool))):
        return value
    raise ValueError(f"{path} must say {_CALLED[kind]} as {key}, found {value!r:.80}")


def write_json(path: Path, value: Any) -> None:
    """Write `value` to a new file, for people to read too."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def publish(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary folder, force it to disk, and rename it to `folder`.

    The umask alone decides who can read the files. Raises ValueError unless `folder` is new or
    empty. `folder` is never there in part.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} must be new or empty, found it in use; choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.parent / f".{folder.name}-{secrets.token_hex(4)}"
    draft.mkdir()
    allowed = draft.stat().st_mode & 0o666
    try:
        write(draft)
        for path in (*draft.rglob("*"), draft):
            if path.is_file():
                path.chmod(allowed)  # safetensors keeps its files to their owner
            _force_to_disk(path)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft)
        raise
    _force_to_disk(folder.parent)


def _force_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_MOST_NAMES: Final = 8  # that a message lists


def read_tensors(path: Path) -> dict[str, "Tensor"]:
    """The tensors of a safetensors file, on the CPU.

    Raises ValueError, naming the file, if it is missing or broken.
    """
    from safetensors.torch import load_file  # brings torch, which tokenizers are read without

    check_fetched(path)
    try:
        return load_file(path)
    except Exception as error:  # a broken file makes its reader raise whatever it does
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} holds no tensors ({reason}); is it complete?") from error


def listed(names: Sequence[str]) -> str:
    """Some of these names for a message, and how many more there are; `none` of none."""
    more = len(names) - _MOST_NAMES
    return (", ".join(names[:_MOST_NAMES]) or "none") + (f" and {more} more" if more > 0 else "")


def check_names(names: Iterable[str], own: Iterable[str], source: str, remedy: str = "") -> None:
    """Raise ValueError unless the names in `source` are exactly those of our own tensors."""
    theirs, ours = set(names), set(own)
    if ours != theirs:
        raise ValueError(
            f"{source} must hold exactly the tensors of the model: missing "
            f"{listed(sorted(ours - theirs))}; unexpected {listed(sorted(theirs - ours))}{remedy}"
        )
