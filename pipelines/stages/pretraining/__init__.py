"""Stage: from training examples to a pretrained encoder."""

from pipelines.stage import Stage

PRETRAINING = Stage(
    name="pretraining",
    section="pretraining",
    title="pretraining",
    command="pretrain",
    purpose="Pretrain an encoder under Ray Train, with held-out evaluation while it learns.",
    example="bertsmith pretrain --corpus 'texts/*.txt' --set pretraining.size=mini",
    kind="encoder",
    version=4,
    needs=("examples", "vocabulary"),
    build="pipelines.stages.pretraining.stage:build_encoder",
    cut="pipelines.stages.pretraining.settings:split_of",
    uses_network=True,  # its run is opened at the tracker before the first step
    headline=lambda statistics: f"{statistics['num_parameters']:,} parameters",
)
