"""The figures of something that goes on, as one line says them: the most telling ones first.

The names are those of the curves in MLflow; what has no phrase of its own keeps its name.
"""

from collections.abc import Mapping

from flows.reporting.quantities import duration, memory, number

Figures = Mapping[str, float | str]

_FOR_PROGRAMS = ("total/", "checkpoint/")  # a line has rates and times left in their place

# What evaluations judge, by the beginning of its figures' names.
_JUDGED = {
    "mlm_": "masked tokens",
    "clm_": "next tokens",
    "nsp_": "next sentences",
    "": "labels",
}


def phrases(figures: Figures) -> list[str]:
    """A phrase for each of `figures`; those that belong together share one."""
    left = {name: v for name, v in figures.items() if not name.startswith(_FOR_PROGRAMS)}
    said = [
        *_losses(left),
        *_rates(left),
        *_waiting(left),
        *_step_times(left),
        *_memory(left),
        *_heldout(left),
    ]
    return [*said, *(f"{name} {_value(value)}" for name, value in left.items())]


def _losses(left: dict[str, float | str]) -> list[str]:
    """Losses, learning rate and gradient norm under short names."""
    names = [name for name in left if name.startswith("train/")]
    return [
        f"{name.removeprefix('train/').replace('_', ' ')} {_value(left.pop(name))}"
        for name in names
    ]


def _rates(left: dict[str, float | str]) -> list[str]:
    recent = left.pop("speed/tokens_per_second", None)
    overall = left.pop("speed/tokens_per_second_overall", None)
    share = left.pop("speed/utilization", None)
    said = []
    if recent is not None:
        beside = f" ({_whole(overall)} overall)" if overall is not None else ""
        said.append(f"{_whole(recent)} tokens/s{beside}")
    if share is not None:
        said.append(f"{_share(share)} of the matrix rate")
    return said


def _waiting(left: dict[str, float | str]) -> list[str]:
    share = left.pop("speed/data_wait", None)
    left.pop("speed/seconds_left", None)  # the line says it beside the steps
    return [] if share is None else [f"waits for data {_share(share)}"]


def _step_times(left: dict[str, float | str]) -> list[str]:
    names = [f"speed/step_seconds_p{percent}" for percent in (50, 95, 99)]
    if any(name not in left for name in names):
        return []
    taken = [float(left.pop(name)) for name in names]
    if taken[0] < 1:
        return ["steps of " + " / ".join(f"{seconds * 1000:.0f}" for seconds in taken) + " ms"]
    return ["steps of " + " / ".join(duration(seconds) for seconds in taken)]


def _memory(left: dict[str, float | str]) -> list[str]:
    said = []
    for what, holds, most in (
        ("memory", "memory/resident_bytes", "memory/peak_bytes"),
        ("GPU", "memory/gpu_bytes", "memory/gpu_peak_bytes"),
    ):
        if holds in left and most in left:
            now, peak = float(left.pop(holds)), float(left.pop(most))
            said.append(f"{what} {memory(now)} (peak {memory(peak)})")
    return said


def _heldout(left: dict[str, float | str]) -> list[str]:
    """The last evaluation: its loss, and accuracies beside what they have to beat.

    All of an evaluation is in MLflow; a line has room for what a person looks for.
    """
    found = {name: left.pop(name) for name in list(left) if name.startswith(("eval/", "baseline/"))}
    said = []
    for name, what in _JUDGED.items():
        accuracy = found.get(f"eval/{name}accuracy")
        if accuracy is None:
            continue
        phrase = f"held-out {what} {_share(accuracy)}"
        baseline = found.get(f"baseline/{name}accuracy")
        beside = "" if baseline is None else f" (to beat: {_share(baseline)})"
        content = found.get(f"eval/{name}accuracy/content")
        words = "" if content is None else f", content words {_share(content)}"
        said.append(f"{phrase}{beside}{words}")
    return said


def _whole(value: float | str) -> str:
    return f"{float(value):,.0f}"


def _share(value: float | str) -> str:
    return f"{float(value):.1%}"


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else number(value)
