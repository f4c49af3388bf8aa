"""How much memory a run takes: its own processes, sampled."""

import threading

import psutil

_SAMPLE_SECONDS = 0.5


class MemorySampler:
    """Samples the memory of this process and all its descendants, and keeps peaks.

    On Linux a page that several processes share is counted once (proportional set size);
    elsewhere resident sizes are added up.
    """

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self._lock = threading.Lock()
        self._peak_of_stage = 0
        self.peak_bytes = 0

    def __enter__(self) -> "MemorySampler":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stopping.set()
        self._thread.join()

    def start_stage(self) -> None:
        """Forget the stage's peak so far."""
        with self._lock:
            self._peak_of_stage = 0

    def stage_peak_bytes(self) -> int:
        """The peak since `start_stage`, this instant included."""
        self._sample()
        return self._peak_of_stage

    def _run(self) -> None:
        while not self._stopping.wait(_SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        used = memory_of_process_tree()
        with self._lock:
            self._peak_of_stage = max(self._peak_of_stage, used)
            self.peak_bytes = max(self.peak_bytes, used)


def memory_of_process_tree() -> int:
    """Bytes that this process and its descendants hold now."""
    this = psutil.Process()
    return sum(_memory_of(process) for process in (this, *this.children(recursive=True)))


def _memory_of(process: psutil.Process) -> int:
    try:
        if psutil.LINUX:
            return int(process.memory_full_info().pss)
        return int(process.memory_info().rss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0  # it ended between being listed and being asked
