"""What the phases of a training run read: short examples first, then those of the full length.

A phase reads its own examples from their beginning, so (seed, step) is the whole position still.
"""

from collections.abc import Iterator

from bert_core.batch import Batch
from bert_core.masking import MaskingConfig
from bert_core.training.optimization.configuration import Restart
from pipelines.artifacts import Artifact
from pipelines.stages.examples.batches import ExampleReader, largest_batch, micro_batches
from pipelines.stages.pretraining.phases import Phase, phases_of
from pipelines.stages.pretraining.settings import PretrainingSettings


def restart_of(settings: PretrainingSettings) -> Restart | None:
    """Where the learning rate starts over; None where one schedule reaches over all steps."""
    rate, phases = settings.full_learning_rate, phases_of(settings)
    if rate is None or len(phases) == 1:
        return None
    share = settings.full_warmup_fraction
    warmup = settings.warmup_fraction if share is None else share
    return Restart(
        step=phases[1].first_step,
        learning_rate=rate,
        warmup_steps=round(phases[1].num_steps * warmup),
    )


class TrainingExamples:
    """This rank's micro-batches of any step, whatever its phase."""

    def __init__(
        self,
        settings: PretrainingSettings,
        examples: Artifact,
        rank: int,
        world_size: int,
        share: tuple[int, int] = (0, 1),  # of the node's fetching: see `ExampleReader`
    ) -> None:
        self._settings = settings
        self._phases = phases_of(settings)
        self._readers = {
            phase.examples: ExampleReader(examples, phase.examples, share) for phase in self._phases
        }
        self._ranks = rank, world_size

    def largest_batches(self) -> list[Batch]:
        """One of each phase that needs as much memory as any of its micro-batches."""
        return [self._largest(phase) for phase in self._phases]

    def _largest(self, phase: Phase) -> Batch:
        reader, cut = self._readers[phase.examples], phase.cut
        ends = (phase.first_step, phase.first_step + phase.num_steps - 1)
        rates = [self._settings.masking_at(step, reader.masking_config) for step in ends]
        return largest_batch(
            reader,
            min(cut.micro_batch_size, cut.global_batch_size),
            masking=max(rates, key=lambda config: config.fraction),
        )

    def micro_batches(self, step: int) -> Iterator[tuple[int, Batch]]:
        """Those of this rank, each with its number within the step."""
        phase = next(each for each in reversed(self._phases) if step >= each.first_step)
        reader = self._readers[phase.examples]
        rank, world_size = self._ranks
        masking: MaskingConfig = self._settings.masking_at(step, reader.masking_config)
        return micro_batches(
            reader,
            seed=self._settings.seed,
            step=step - phase.first_step,
            global_batch_size=phase.cut.global_batch_size,
            micro_batch_size=phase.cut.micro_batch_size,
            rank=rank,
            world_size=world_size,
            masking=masking,
        )
