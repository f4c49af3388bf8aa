"""Pictures are real images of the right size, drawn from the points of a training run."""

import struct

from pipelines.show import draw, training_panels

HISTORY = [
    {"step": 10, "train/loss": 6.0},
    {"step": 20, "train/loss": 5.0, "eval/mlm_loss": 5.5, "eval/mlm_accuracy": 0.1},
    {"step": 30, "train/loss": 4.5, "eval/mlm_loss": 5.1, "eval/mlm_accuracy": 0.2,
     "baseline/mlm_accuracy": 0.05},
]  # fmt: skip


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_losses_and_accuracies_get_a_panel_each_with_their_baselines() -> None:
    loss, accuracy = training_panels(HISTORY, {"baseline/mlm_accuracy": 0.05})
    assert loss.curves["train/loss"] == ([10, 20, 30], [6.0, 5.0, 4.5])
    assert loss.curves["eval/mlm_loss"] == ([20, 30], [5.5, 5.1])
    assert not loss.levels
    assert accuracy.curves == {"eval/mlm_accuracy": ([20, 30], [0.1, 0.2])}
    assert accuracy.levels == {"baseline of eval/mlm_accuracy": 0.05}


def test_two_panels_are_twice_as_wide_as_one() -> None:
    panels = training_panels(HISTORY, {})
    one, two = size_of(draw(panels[:1])), size_of(draw(panels))
    assert two == (2 * one[0], one[1])
