"""Stage: labelled items, divided into train and held-out."""

from pipelines.stage import Stage

DATASET = Stage(
    name="dataset",
    title="dataset",
    kind="dataset",
    version=5,
    headline=lambda statistics: f"{sum(statistics['items'].values()):,} items",
)
