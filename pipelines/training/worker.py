"""What one Ray Train worker does: take up the last checkpoint, train, tell, save."""

import time
from contextlib import closing
from typing import Any

import ray.train
import ray.train.torch
import torch

from bert_core.backends.matrix_rate import measured_matrix_rate
from bert_core.backends.memory import return_freed_memory
from bert_core.backends.precision import Precision, compute_dtype
from bert_core.model.catalogue import TrainableModel
from bert_core.model.preparation import checkpoint_activations
from bert_core.training.guard import GuardConfig
from bert_core.training.optimization import OptimizationConfig, build_optimizer, state_size
from pipelines.artifacts import Artifact
from pipelines.core.cluster.machine import computing_machine
from pipelines.training.checkpoints import Checkpoints
from pipelines.training.early_stopping import Best
from pipelines.training.lap import Lap
from pipelines.training.memory import fitting_memory, room_on
from pipelines.training.preflight import (
    checkpoint_bytes,
    note_on_best,
    refuse_full_disk,
    refuse_strange_ranks,
)
from pipelines.training.ranks import this_node, this_rank
from pipelines.training.rehearsal import rehearsed
from pipelines.training.resuming import Standing, save_at_end, take_up
from pipelines.training.stopping import listening
from pipelines.training.telemetry.curve import Telemetry
from pipelines.training.telemetry.metrics import MetricLog
from pipelines.training.telemetry.progress import ProgressSender
from pipelines.training.telemetry.speed import Speed
from pipelines.training.work import Work

__all__ = ["Work", "optimization", "run"]


def optimization(work: Work, *, shard_optimizer_state: bool) -> OptimizationConfig:
    """The optimizer's own configuration for a training."""
    settings, num_steps = work.settings, work.num_steps
    first_phase = num_steps if work.restart is None else work.restart.step
    assert settings.learning_rate != "auto", "a stage settles the rate before it trains"
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
    """Do the work from the last checkpoint to the last step, or to a stop; returns what it told.

    After too many steps in a row that were left out it goes on behind them, from an earlier
    checkpoint and at a lower rate, as often as the settings say. Raises UserError where that was
    too often, and, before the first step is taken, where `fitting_memory` finds no room.
    """
    started = time.perf_counter()
    settings, rank = work.settings, this_rank()[0]
    torch.set_num_threads(values["num_threads"])
    return_freed_memory()  # the parameters move when the optimizer is built
    device = ray.train.torch.get_device()
    inputs = {name: each.fingerprint for name, each in values.items() if isinstance(each, Artifact)}
    told_to_all = f"{work.num_steps} {settings.model_dump_json()} {inputs}"
    refuse_strange_ranks(work.stage, device, this_node(), told_to_all)
    torch.manual_seed(settings.seed)
    model = work.build_model()
    layers = min(values["checkpointed_layers"], model.config.num_layers)
    checkpoint_activations(model, layers)
    config = optimization(work, shard_optimizer_state=values["shard_optimizer_state"])
    memory = _fitting_memory(work, model, config, device, values["precision"])
    model = model.to(device)
    speed = Speed(
        work.num_steps,
        num_ranks=this_rank()[1],
        matrix_rate=measured_matrix_rate(compute_dtype(values["precision"], device), device),
    )
    folder, filesystem, keeping = values["checkpoints"]
    standing = Standing(
        model=model,
        optimizer=build_optimizer(model, config),
        telemetry=_telemetry(work, values, speed, is_speaker=rank == 0),
        checkpoints=Checkpoints(folder, filesystem, keeping),
        is_writer=rank == 0,
        node=this_node(),
        best=None if work.patience is None else Best(work.patience),
    )
    telemetry = standing.telemetry
    with closing(telemetry):  # where it ends in an error, too: what led there is told
        position = take_up(standing, settings.seed)
        if memory:
            telemetry.show(position.step, f"{work.stage}: {memory}")
        if position.step:
            telemetry.show(position.step, f"{work.stage} resumed from step {position.step}")
        else:
            _prepare_first_step(work, standing, config, values, device)
        with listening(values["stop"] if rank == 0 else None) as wants_stop:
            lap = Lap(
                work, standing, speed, device, values["precision"], wants_stop, started,
                values["checkpoint_seconds"],
            )  # fmt: skip
            end = lap.train_on(position)
        told: dict[str, Any] = {"checkpoint": save_at_end(standing, *end)}
        if end.is_last:
            with standing.optimizer.averaged():
                if standing.best is not None:
                    standing.best.put_into(model)
                told["judged"] = work.judge(model.cpu())
            told["computed_on"] = computing_machine()
    return {**telemetry.summary(), **told}


def _prepare_first_step(
    work: Work,
    standing: Standing,
    config: OptimizationConfig,
    values: dict[str, Any],
    device: torch.device,
) -> None:
    """What a training that finds no checkpoint does before its first step. All ranks call it."""
    model, optimizer = standing.model, standing.optimizer
    if standing.is_writer:
        keeping = values["checkpoints"][-1]
        if note := note_on_best(work, keeping):
            standing.telemetry.warn(note)
        kept = keeping.most_of(work.num_steps, work.settings.checkpoint_every_steps)
        sizes = checkpoint_bytes(model, config, with_best=standing.best is not None)
        refuse_full_disk(work.stage, *sizes, kept, values["checkpoint_folder"])
    if work.largest_batches is not None:
        largest, precision = work.largest_batches(), values["precision"]
        note = rehearsed(work.stage, model, optimizer, largest, device, precision)
        standing.telemetry.show(0, note)
    if work.begin is not None:
        work.begin(model)


def _fitting_memory(
    work: Work,
    model: TrainableModel,
    config: OptimizationConfig,
    device: torch.device,
    precision: Precision,
) -> str:
    """What the first step needs, in a line; empty for a rank that has no part in it."""
    batches = [batch for step in work.first_steps for batch in work.batches_of(step)]
    if not batches:
        return ""
    if work.largest_batches is not None:
        batches += [(0, batch) for batch in work.largest_batches()]
    room = room_on(device, ray.train.get_context().get_local_world_size())
    dtype = compute_dtype(precision, device)
    size = state_size(model, config, num_ranks=this_rank()[1], num_together=room.num_ranks)
    gathered = size.sent
    # The first rank writes, and gathers what is divided in the memory of its node.
    if size.sent and device.type == "cpu" and ray.train.get_context().get_node_rank() == 0:
        gathered += size.whole / room.num_ranks
    return fitting_memory(
        model,
        batches,
        room,
        stage=work.stage,
        dtype=dtype,
        device=device,
        optimizer_buffers=size.held,
        gathered_buffers=gathered,
    )


def _telemetry(work: Work, values: dict[str, Any], speed: Speed, *, is_speaker: bool) -> Telemetry:
    if not is_speaker:
        return Telemetry(work.stage, work.num_steps, None, None, speed)
    run_id = values["run_id"]
    metrics = MetricLog(values["tracking_uri"], run_id) if run_id else None
    progress = ProgressSender(values["progress"])
    return Telemetry(work.stage, work.num_steps, progress, metrics, speed)
