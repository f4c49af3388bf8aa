"""What one Ray Train worker does: take up the last checkpoint, train, tell, save."""

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
from ray.train import Checkpoint
from ray.util import get_node_ip_address

from bert_core.backends.matrix_rate import measured_matrix_rate
from bert_core.backends.memory import return_freed_memory
from bert_core.backends.precision import Precision, compute_dtype
from bert_core.batch import Batch
from bert_core.model.catalogue import TrainableModel
from bert_core.model.checkpointing import checkpoint_activations
from bert_core.training.loop import MicroBatches, train
from bert_core.training.optimization import (
    OptimizationConfig,
    Optimizer,
    build_optimizer,
    state_size,
)
from bert_core.training.optimization.configuration import Restart
from bert_core.training.state import Position, load_checkpoint, save_checkpoint, save_model
from bert_core.training.step import StepReport
from pipelines.core.cluster.machine import computing_machine
from pipelines.training.memory import fitting_memory, room_on
from pipelines.training.preflight import checkpoint_bytes, refuse_full_disk, refuse_strange_ranks
from pipelines.training.ranks import this_rank
from pipelines.training.rehearsal import rehearsed
from pipelines.training.results import AVERAGED_FOLDER, MODEL_FOLDER
from pipelines.training.settings import TrainingSettings
from pipelines.training.telemetry.curve import Telemetry
from pipelines.training.telemetry.metrics import MetricLog
from pipelines.training.telemetry.progress import ProgressSender
from pipelines.training.telemetry.speed import Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One training as its workers see it."""

    stage: str
    settings: TrainingSettings
    num_steps: int
    evaluate_every_steps: int
    build_model: Callable[[], TrainableModel]  # called under the seed of the initialization
    micro_batches: MicroBatches  # this rank's share of a step
    batches_of: MicroBatches  # the same, with nothing read ahead
    # Every rank calls these, and all of them get the same figures.
    evaluate: Callable[[TrainableModel], dict[str, float]]
    # After the last step, with the model on the CPU: a proof on any machine computes there, too.
    judge: Callable[[TrainableModel], dict[str, Any]]
    # Before the first step of a training that finds no checkpoint; every rank calls it.
    begin: Callable[[TrainableModel], None] | None = None
    layer_decay: float = 1.0  # see `OptimizationConfig`
    restart: Restart | None = None  # of the learning rate
    # One step of every kind there is: each must fit the memory.
    first_steps: tuple[int, ...] = (0,)
    # Ends the training after so many steps, on all ranks alike: where it is only measured.
    is_enough: Callable[[int], bool] = lambda done: False
    # One of every kind that needs as much memory as any; rehearsed before the first step.
    largest_batches: Callable[[], Sequence[Batch]] | None = None


def optimization(work: Work, *, shard_optimizer_state: bool) -> OptimizationConfig:
    """The optimizer's own configuration for a training."""
    settings, num_steps = work.settings, work.num_steps
    first_phase = num_steps if work.restart is None else work.restart.step
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
        averaging_decay=settings.averaging_decay,
        exchange_dtype=settings.exchange_dtype,
        shard_optimizer_state=shard_optimizer_state,
    )


def run(work: Work, values: dict[str, Any]) -> dict[str, Any]:
    """Do the work from the last checkpoint to the last step; returns what it told.

    Raises NonFiniteGradientError for a step that was not taken, before anything is saved of it,
    and UserError where `fitting_memory` finds no room, before the first step is taken.
    """
    settings, rank = work.settings, this_rank()[0]
    torch.set_num_threads(values["num_threads"])
    return_freed_memory()  # the parameters move when the optimizer is built
    device = ray.train.torch.get_device()
    told_to_all = f"{work.num_steps} {work.layer_decay} {settings.model_dump_json()}"
    refuse_strange_ranks(work.stage, device, get_node_ip_address(), told_to_all)
    torch.manual_seed(settings.seed)
    model = work.build_model()
    layers = min(values["checkpointed_layers"], model.config.num_layers)
    checkpoint_activations(model, layers)
    config = optimization(work, shard_optimizer_state=values["shard_optimizer_state"])
    memory = _fitting_memory(work, model, config, device, values["precision"])
    if rank == 0 and ray.train.get_checkpoint() is None:
        folder, kept = values["checkpoint_folder"], values["checkpoints_kept"]
        refuse_full_disk(work.stage, *checkpoint_bytes(model, config), kept, folder)
    model = model.to(device)
    optimizer = build_optimizer(model, config)
    speed = Speed(
        work.num_steps,
        num_ranks=this_rank()[1],
        matrix_rate=measured_matrix_rate(compute_dtype(values["precision"], device), device),
    )
    telemetry = _telemetry(work, values, speed, is_speaker=rank == 0)
    first_step = _take_up(model, optimizer, telemetry)
    if work.begin and not first_step:
        work.begin(model)
    if memory:
        telemetry.show(first_step, f"{work.stage}: {memory}")
    if first_step:
        telemetry.show(first_step, f"{work.stage} resumed from step {first_step}")
    elif work.largest_batches is not None:
        largest, precision = work.largest_batches(), values["precision"]
        note = rehearsed(work.stage, model, optimizer, largest, device, precision)
        telemetry.show(0, note)
    num_tokens = torch.tensor(telemetry.num_tokens, dtype=torch.float64, device=device)
    started = time.perf_counter()
    for report in train(
        model,
        optimizer,
        speed.timed(model, work.micro_batches),
        seed=settings.seed,
        first_step=first_step,
        num_steps=work.num_steps,
        device=device,
        precision=values["precision"],
    ):
        done = report.step + 1
        is_last = done == work.num_steps or work.is_enough(done)
        num_tokens += report.num_tokens  # stays on the device: reading it would wait for the step
        telemetry.take_step(done, time.perf_counter() - started)
        is_checkpoint = done % settings.checkpoint_every_steps == 0 or is_last
        is_evaluation = done % work.evaluate_every_steps == 0 or is_last
        is_logged = is_checkpoint or done % settings.log_every_steps == 0
        if is_logged or is_evaluation:
            optimizer.raise_if_halted()  # on every rank, before one of them tells or saves
        if is_logged:
            telemetry.log(done, _figures(report))
            telemetry.log_speed(done, float(num_tokens))
        if is_evaluation:
            with optimizer.averaged():
                telemetry.log(done, work.evaluate(model))
        telemetry.show(done)
        if is_checkpoint:
            position = Position(seed=settings.seed, step=done)
            _save(model, optimizer, position, telemetry, is_writer=rank == 0, is_last=is_last)
        if is_last:
            break
        started = time.perf_counter()
    with optimizer.averaged():
        judged = work.judge(model.cpu())
    telemetry.close()
    return {**telemetry.summary(), "judged": judged, "computed_on": computing_machine()}


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


def _take_up(model: TrainableModel, optimizer: Optimizer, telemetry: Telemetry) -> int:
    """Put everything where the last checkpoint left it; returns the steps that are done."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        position = load_checkpoint(Path(folder) / MODEL_FOLDER, model, optimizer)
        telemetry.restore(Path(folder), position.step)
    return position.step


def _save(
    model: TrainableModel,
    optimizer: Optimizer,
    position: Position,
    telemetry: Telemetry,
    *,
    is_writer: bool,
    is_last: bool,
) -> None:
    """Hand a checkpoint to Ray Train, which keeps it whole or not at all. All ranks call this."""
    folder = Path(tempfile.mkdtemp(prefix="bertsmith-checkpoint-"))
    try:
        save_checkpoint(folder / MODEL_FOLDER, model, optimizer, position, is_writer=is_writer)
        if is_last and optimizer.config.averaging_decay is not None:
            with optimizer.averaged():
                if is_writer:
                    save_model(folder / AVERAGED_FOLDER, model)
        checkpoint = None
        if is_writer:
            telemetry.save(folder)
            checkpoint = Checkpoint.from_directory(str(folder))
        ray.train.report({"step": position.step}, checkpoint=checkpoint)
    finally:
        shutil.rmtree(folder)


def _figures(report: StepReport) -> dict[str, float]:
    losses = {f"train/{name}_loss": float(value) for name, value in report.losses.items()}
    return {
        "train/loss": float(report.loss),
        **(losses if len(losses) > 1 else {}),
        "train/learning_rate": report.learning_rate,
        "train/gradient_norm": float(report.grad_norm),
    }
