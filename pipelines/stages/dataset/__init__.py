"""Stage: labelled items, divided into train and held-out."""

from pipelines.stage import Stage

DATASET = Stage(
    name="dataset",
    section="dataset",
    title="dataset",
    command="dataset",
    purpose="Read the labelled items and divide them into train and held-out.",
    example="bertsmith dataset --labels reviews.csv --label-column stars",
    kind="dataset",
    version=5,
    needs=("corpus",),
    build="pipelines.stages.dataset.stage:build_dataset",
    check="pipelines.stages.dataset.items:check_inputs",
    uses_network=True,
    is_wanted=lambda settings: settings.source.kind != "none",
    headline=lambda statistics: f"{sum(statistics['items'].values()):,} items",
)
