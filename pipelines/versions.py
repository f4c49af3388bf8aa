"""Which code and which libraries made a thing, and which machine computed it."""

import hashlib
import platform
import sys
import unicodedata
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

_LIBRARIES = ("torch", "numpy", "pyarrow", "tokenizers", "ray", "mlflow", "prefect", "datasets")
_PACKAGES = ("bert_core", "pipelines", "flows")
_DECIDING = ("torch", "numpy", "pyarrow", "tokenizers")  # of what a stage's bytes are made by
_CPUINFO = Path("/proc/cpuinfo")


@cache
def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that shape our results."""
    return {"python": platform.python_version()} | {name: version(name) for name in _LIBRARIES}


def versions_of(*names: str) -> str:
    """`name version` of each, sorted: what of them decides an artifact's bytes is in its name.

    Distributions, and two parts of the interpreter: `python`, its language (3.11), and `unicode`,
    the tables that normal forms, lower case and white space follow.
    """
    interpreter = {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "unicode": unicodedata.unidata_version,
    }
    return ", ".join(f"{name} {interpreter.get(name) or version(name)}" for name in sorted(names))


@cache
def code_version() -> str:
    """The package's version and a hash of its own sources, as in `0.1.0+src.1f0c9a2b`."""
    return f"{version('bertsmith')}+src.{source_digest()}"


@cache
def source_digest() -> str:
    """A hash of Bertsmith's own sources, installed or not: 8 digits."""
    digest = hashlib.sha256()
    for folder in source_folders():
        for path in sorted(folder.rglob("*.py")):
            name = path.relative_to(folder.parent).as_posix()
            digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]


def source_folders() -> list[Path]:
    """The folders of Bertsmith's packages: side by side, but where Ray has unpacked them."""
    specs = [find_spec(package) for package in _PACKAGES]
    return [Path(spec.origin).parent for spec in specs if spec is not None and spec.origin]


def computing_versions() -> dict[str, str]:
    """What must be equal on all nodes of a run: our sources and the versions that decide bytes.

    What follows a `+` in a version is left out: torch for GPUs and torch for CPUs may meet.
    """
    own = {"Bertsmith's sources": source_digest(), "Python": versions_of("python").split()[1]}
    return own | {name: version(name).partition("+")[0] for name in _DECIDING}


def other_versions(expected: Mapping[str, str]) -> str:
    """What is not as `expected` by the process that leads a run, and the remedy; else empty."""
    here = computing_versions()
    names = [name for name, version in expected.items() if here.get(name) != version]
    if not names:
        return ""
    theirs = ", ".join(f"{name} {here.get(name, 'none')}" for name in names)
    ours = ", ".join(f"{name} {expected[name]}" for name in names)
    return (
        f"runs other versions than this process, {theirs} instead of {ours}; install the same on "
        "both, or take that node out of the cluster"
    )


def computing_machine() -> dict[str, str]:
    """Everything that can change the last bits of a held-out figure computed here, on a CPU.

    Keys: `processor`, `device`, `precision`, `threads`, `libraries`. Where two of these
    dictionaries are equal, the same model gives the same figure from the same data.
    """
    import torch

    name = platform.processor() or platform.machine()
    if _CPUINFO.is_file():
        for line in _CPUINFO.read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    libraries = [f"{library} {version(library)}" for library in ("torch", "numpy", "tokenizers")]
    return {
        "processor": f"{name}, {torch.backends.cpu.get_cpu_capability()}",
        "device": "cpu",
        "precision": "float32",  # of all held-out figures, however the training run computed
        "threads": str(torch.get_num_threads()),
        "libraries": ", ".join([f"python {platform.python_version()}", *libraries]),
    }
