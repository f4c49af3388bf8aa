"""What computed a figure: the same on the same machine, near on another one."""

import platform
from importlib.metadata import version
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
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
        "precision": "float32",  # of all held-out figures, however the training computed
        "threads": str(torch.get_num_threads()),
        "libraries": ", ".join([f"python {platform.python_version()}", *libraries]),
    }


def _processor_name() -> str:
    if _CPUINFO.is_file():
        for line in _CPUINFO.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
