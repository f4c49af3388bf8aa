"""Stage: labelled texts, divided into train and held-out."""

from pipelines.core.stage import Stage

LABELLED = Stage(
    name="labelled",
    section="task",
    title="labelled texts",
    command="labelled",
    purpose="Read the labelled texts and divide them into train and held-out.",
    example="bertsmith labelled --labels reviews.csv --label-column stars",
    kind="task",
    version=2,
    needs=("corpus",),
    build="pipelines.stages.labelled.stage:build_task",
    check="pipelines.stages.labelled.checks:check_inputs",
    reaches_out=True,
    is_wanted=lambda settings: settings.labelled.kind != "none",
    headline=lambda statistics: f"{len(statistics['labels'])} labels",
)
