"""Stage: labelled items, divided into train and held-out."""

from pipelines.stage import Stage

LABELLED = Stage(
    name="labelled",
    section="labelled",
    title="labelled texts",
    command="labelled",
    purpose="Read the labelled items and divide them into train and held-out.",
    example="bertsmith labelled --labels reviews.csv --label-column stars",
    kind="labelled",
    version=4,
    needs=("corpus",),
    build="pipelines.stages.labelled.stage:build_labelled",
    check="pipelines.stages.labelled.checks:check_inputs",
    uses_network=True,
    is_wanted=lambda settings: settings.source.kind != "none",
    headline=lambda statistics: f"{sum(statistics['items'].values()):,} items",
)
