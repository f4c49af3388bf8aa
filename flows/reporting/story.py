"""What a flow run did: its stages, what they made, and what is worth telling at the end."""

from dataclasses import dataclass, field

from pipelines.artifacts import Artifact
from pipelines.core.recipes.ladder import CorpusRecipe
from pipelines.insight.showcase import FilledMask, Prediction
from pipelines.registry.comparison.judgement import Judgement
from pipelines.registry.promotion import Promotion
from pipelines.registry.registration import RegisteredModel
from pipelines.registry.verification import Verification


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage of the run: what it made, how long it took, and the memory it peaked at."""

    name: str
    artifact: Artifact | None  # None for a stage that makes no artifact, such as registration
    seconds: float
    peak_bytes: int  # of the run's whole process tree while the stage ran

    @property
    def outcome(self) -> str:
        """`built`, `reused` or, where there is no artifact, `done`."""
        if self.artifact is None:
            return "done"
        return "reused" if self.artifact.reused else "built"


@dataclass(slots=True)
class Story:
    """Everything that the report and the final screen tell; it grows while the flow runs."""

    flow: str
    recipe: CorpusRecipe
    flow_run_url: str = ""  # empty where no server shows it
    records: list[StageRecord] = field(default_factory=list)
    failure: str = ""  # such as "failed in stage pretraining: …"; empty where all went well
    notes: list[str] = field(default_factory=list)  # such as "resumed from step 120"
    models: list[RegisteredModel] = field(default_factory=list)
    alias: str = ""  # that newly verified models are given
    verifications: list[Verification] = field(default_factory=list)  # made by this run
    judgements: list[Judgement] = field(default_factory=list)  # of what this run compared
    promotions: list[Promotion] = field(default_factory=list)  # made by this run
    filled_masks: list[FilledMask] = field(default_factory=list)
    predictions: list[tuple[str, Prediction]] = field(default_factory=list)  # (expected, answer)
    seconds: float = 0.0
    peak_bytes: int = 0

    def artifact(self, stage: str) -> Artifact | None:
        """What the stage of this name made, if it ran."""
        return next((record.artifact for record in self.records if record.name == stage), None)
