"""What a run was trained on, as the tracker shows it: a data set is an artifact of the store."""

import json

from mlflow.entities import Dataset, DatasetInput, InputTag

from pipelines.artifacts import Artifact
from pipelines.core.redaction import redacted

_CONTEXT = "mlflow.data.context"  # MLflow's own tag of what a data set was used for


def training_input(data: Artifact, num_rows: int) -> DatasetInput:
    """`data` as MLflow lists it: its kind, its fingerprint, where it lies and its training rows."""
    scheme, separator, _ = data.url.partition("://")
    dataset = Dataset(
        name=data.kind,
        digest=data.fingerprint,
        source_type=scheme if separator else "local",
        source=json.dumps({"uri": redacted(data.url)}),
        profile=json.dumps({"num_rows": num_rows}),
    )
    return DatasetInput(dataset, [InputTag(_CONTEXT, "training")])
