"""One optimizer step, the loop around it, and the state that a run is taken up from."""

from bert_core.training.evaluation import RunningSums, evaluate
from bert_core.training.guard import Finding, GuardConfig, SkippedStepsError
from bert_core.training.initialization import Initialization, load_encoder_into
from bert_core.training.loop import train
from bert_core.training.optimization import (
    LAMB,
    AdamW,
    Muon,
    OptimizationConfig,
    Optimizer,
    build_optimizer,
)
from bert_core.training.state import (
    Position,
    load_checkpoint,
    load_model,
    save_checkpoint,
    save_model,
)
from bert_core.training.step import StepReport, optimizer_step
from bert_core.training.step_memory import (
    StepMemory,
    batch_memory,
    step_memory,
)

__all__ = [
    "LAMB", "AdamW", "Finding", "GuardConfig", "Initialization", "Muon", "OptimizationConfig",
    "Optimizer", "Position", "RunningSums", "SkippedStepsError", "StepMemory",
    "StepReport", "batch_memory", "build_optimizer", "evaluate", "load_checkpoint",
    "load_encoder_into", "load_model", "optimizer_step", "save_checkpoint", "save_model",
    "step_memory", "train",
]  # fmt: skip
