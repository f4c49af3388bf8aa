"""How much memory a run takes: its own processes, sampled."""

import threading

import psutil

_SAMPLE_SECONDS = 0.5


class MemorySampler:
    """Samples the memory of this process and all its descendants, and keeps peaks.

    See `memory_of_process_tree` for what counts.
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
    """Bytes that this process and its descendants hold now.

    On Linux: what each holds for itself, and once the largest of the parts that they share (code,
    mapped files, shared memory). Elsewhere resident sizes are added up.
    """
    this = psutil.Process()
    memories = [_memory_of(process) for process in (this, *this.children(recursive=True))]
    return sum(own for own, _ in memories) + max(shared for _, shared in memories)


def _memory_of(process: psutil.Process) -> tuple[int, int]:
    """Bytes of its own and shared ones.

    The proportional set size would say it exactly, but the kernel walks all pages for it: sampled
    twice a second that took a tenth of a core from a training run.
    """
    try:
        memory = process.memory_info()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0, 0  # it ended between being listed and being asked
    shared = memory.shared if psutil.LINUX else 0
    return memory.rss - shared, shared
