"""Pictures are drawn from the points of a training run and from counts of answers."""

from typing import Any

import pytest
from matplotlib.figure import Figure

from pipelines import show

HISTORY = [
    {"step": 10, "train/loss": 6.0},
    {"step": 20, "train/loss": 5.0, "eval/mlm_loss": 5.5, "eval/mlm_accuracy": 0.1},
    {"step": 30, "train/loss": 4.5, "eval/mlm_loss": 5.1, "eval/mlm_accuracy": 0.2,
     "baseline/mlm_accuracy": 0.05},
]  # fmt: skip


def test_losses_and_accuracies_get_a_panel_each_with_their_baselines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[Figure] = []
    png_of = show._png_of
    monkeypatch.setattr(show, "_png_of", lambda figure: drawn.append(figure) or png_of(figure))
    picture = show.curves_picture(HISTORY, {"baseline/mlm_accuracy": 0.05})
    assert picture.startswith(b"\x89PNG")
    curves: list[dict[str, Any]] = [
        {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}
        for axes in drawn[0].axes
    ]
    assert curves == [
        {"train/loss": ([10, 20, 30], [6.0, 5.0, 4.5]), "eval/mlm_loss": ([20, 30], [5.5, 5.1])},
        {"eval/mlm_accuracy": ([20, 30], [0.1, 0.2]),
         "baseline of eval/mlm_accuracy": ([0, 1], [0.05, 0.05])},
    ]  # fmt: skip


def test_a_confusion_without_any_answer_is_drawn() -> None:
    assert show.confusion_picture(["a", "b"], [[0, 0], [0, 0]]).startswith(b"\x89PNG")
