"""What computed a figure: the same on the same machine, near on another one."""

import platform
import resource
import sys
from importlib.metadata import version
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_STATUS = Path("/proc/self/status")
_LIBRARIES = ("torch", "numpy", "tokenizers")


def computing_machine(device: str = "cpu") -> dict[str, str]:
    """Everything that can change the last bits of a held-out figure computed on `device` here.

    Keys: `processor`, `device`, `precision`, `threads`, `libraries`. Where two of these
    dictionaries are equal, the same model gives the same figure from the same data.
    """
    import torch

    if device == "cpu":
        processor = f"{_processor_name()}, {torch.backends.cpu.get_cpu_capability()}"
    else:
        processor = torch.cuda.get_device_name(device)
    libraries = [f"{name} {version(name)}" for name in _LIBRARIES]
    return {
        "processor": processor,
        "device": device.partition(":")[0],
        "precision": "float32",  # of all held-out figures, however the training run computed
        "threads": str(torch.get_num_threads()),
        "libraries": ", ".join([f"python {platform.python_version()}", *libraries]),
    }


def peak_resident_bytes() -> int:
    """The most memory that this process ever held.

    Linux's own count starts with the program; `ru_maxrss` starts with what the parent held.
    """
    if peak := _value_in(_STATUS, "VmHWM"):
        return int(peak.split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _processor_name() -> str:
    return _value_in(_CPUINFO, "model name") or platform.processor() or platform.machine()


def _value_in(path: Path, name: str) -> str:
    """What the first line `name: value` of a file of Linux says; empty where there is none."""
    if not path.is_file():
        return ""
    lines = (line.partition(":") for line in path.read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")
