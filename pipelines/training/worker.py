"""What one Ray Train worker does: restore the last checkpoint, train, report, save."""

import time
from contextlib import closing
from typing import Any

import ray.train
import ray.train.torch
import torch

from bert_core.backends.matrix_rate import measured_matrix_rate
from bert_core.backends.memory import return_freed_memory
from bert_core.backends.precision import compute_dtype
from bert_core.model.preparation import checkpoint_activations
from bert_core.training.guard import GuardConfig
from bert_core.training.optimization import build_optimizer
from bert_core.training.optimizer_settings import OptimizationConfig
from pipelines.artifacts import Artifact
from pipelines.config.versions import computing_machine
from pipelines.training.checkpoints import Checkpoints
from pipelines.training.curve import Best, Telemetry
from pipelines.training.messages import ProgressSender, listening_for_stop
from pipelines.training.metrics import MetricLog
from pipelines.training.preflight import (
    check_disk_space,
    check_ranks_agree,
    checkpoint_bytes,
    within_memory,
)
from pipelines.training.ranks import Work, rank_and_world_size, share_of_node, this_node
from pipelines.training.restoring import restore
from pipelines.training.saving import TrainState, save_at_end
from pipelines.training.speed import Speed
from pipelines.training.training_loop import TrainingLoop


def optimization(work: Work, *, shard_optimizer_state: bool) -> OptimizationConfig:
    """The optimizer's own configuration for a training run."""
    settings, num_steps = work.settings, work.num_steps
    first_phase = num_steps if work.restart is None else work.restart.step
    assert settings.learning_rate != "auto", "a stage resolves the rate before it trains"
    return OptimizationConfig(
        optimizer=settings.optimizer,
        learning_rate=settings.learning_rate,
        warmup_steps=round(first_phase * settings.warmup_fraction),
        num_steps=num_steps,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_gradient_norm,
        schedule=settings.schedule,
        decay_fraction=settings.decay_fraction,
        restart=work.restart,
        betas=settings.betas,
        muon_momentum=settings.muon_momentum,
        layer_decay=work.layer_decay,
        rate_scales=work.rate_scales,
        averaging_decay=settings.averaging_decay,
        exchange_dtype=settings.exchange_dtype,
        shard_optimizer_state=shard_optimizer_state,
        guard=GuardConfig(
            spike_factor=settings.spike_factor, max_skipped_in_a_row=settings.max_skipped_steps
        ),
    )


def run(work: Work, values: dict[str, Any]) -> dict[str, Any]:
    """Train from the last checkpoint to the last step, or to a stop; returns the result.

    After too many skipped steps in a row it continues after them, from an earlier checkpoint and
    at a lower rate, as often as the settings allow. Raises UserError after that and, before the
    first step, if the memory of a worker is too small.
    """
    started = time.perf_counter()
    settings, rank = work.settings, rank_and_world_size()[0]
    torch.set_num_threads(values["num_threads"])
    return_freed_memory()  # the parameters move when the optimizer is built
    device = ray.train.torch.get_device()
    inputs = {name: each.fingerprint for name, each in values.items() if isinstance(each, Artifact)}
    asked_of_all = f"{work.num_steps} {settings.model_dump_json()} {inputs}"
    check_ranks_agree(work.stage, device, this_node(), asked_of_all)
    torch.manual_seed(settings.seed)
    config = optimization(work, shard_optimizer_state=values["shard_optimizer_state"])
    _, ranks_on_node = share_of_node()
    what = f"the model of {work.stage} with its optimizer"
    with within_memory(what, "lower size", device, ranks_on_node):
        model = work.build_model()
        checkpoint_activations(model, min(values["checkpointed_layers"], model.config.num_layers))
        model = model.to(device)
        optimizer = build_optimizer(model, config)
    speed = Speed(
        work.num_steps,
        num_ranks=rank_and_world_size()[1],
        matrix_rate=measured_matrix_rate(compute_dtype(values["precision"], device), device),
    )
    folder, filesystem = values["checkpoints"]
    state = TrainState(
        model=model,
        optimizer=optimizer,
        telemetry=_telemetry(work, values, speed, is_speaker=rank == 0),
        checkpoints=Checkpoints(folder, filesystem),
        is_writer=rank == 0,
        node=this_node(),
        best=None if work.patience is None else Best(work.patience),
    )
    telemetry = state.telemetry
    with closing(telemetry):  # also after an error: what led there is reported
        position = restore(state, settings.seed)
        if position.step:
            telemetry.show(position.step, f"{work.stage} resumed from step {position.step}")
        else:
            _prepare_first_step(work, state, values)
        with listening_for_stop(values["messages"] if rank == 0 else None) as wants_stop:
            loop = TrainingLoop(
                work, state, speed, device, values["precision"], wants_stop, started,
            )  # fmt: skip
            end = loop.train_on(position)
        result: dict[str, Any] = {"checkpoint": save_at_end(state, *end)}
        if end.is_last:
            with state.optimizer.averaged():
                if state.best is not None:
                    state.best.put_into(model)
                result["final"] = work.final_evaluation(model.cpu())
            result["computed_on"] = computing_machine()
    return {**telemetry.summary(), "undelivered": telemetry.undelivered(), **result}


def _prepare_first_step(work: Work, state: TrainState, values: dict[str, Any]) -> None:
    """Prepare the first step of a training run without a checkpoint. All ranks call it."""
    model, optimizer = state.model, state.optimizer
    if state.is_writer:
        sizes = checkpoint_bytes(model, optimizer.config, with_best=state.best is not None)
        check_disk_space(work.stage, *sizes, values["checkpoint_folder"])
    if work.begin is not None:
        work.begin(model)


def _telemetry(work: Work, values: dict[str, Any], speed: Speed, *, is_speaker: bool) -> Telemetry:
    if not is_speaker:
        return Telemetry(work.stage, work.num_steps, None, None, speed)
    run_id = values["run_id"]
    metrics = MetricLog(values["tracking_uri"], run_id) if run_id else None
    progress = ProgressSender(values["messages"])
    return Telemetry(work.stage, work.num_steps, progress, metrics, speed)
