"""Whole files for a registered model, as one flow run."""

import json
from pathlib import Path
from typing import Any

from flows.environment import home_folder


def predict_batch(
    model: str | None,
    files: list[str],
    renamed: dict[str, str | None],
    to: str | None,
    home: Path | None,
    *,
    as_json: bool,
) -> None:
    """Run the flow over `files` and say where its answers are."""
    from flows.environment import prepare_flows

    surroundings = prepare_flows(home_folder(home))
    from pydantic import ValidationError

    from flows.batch_prediction import BatchPredictionRecipe, batch_prediction
    from flows.reporting.progress_line import progress_on_terminal
    from pipelines.config.errors import UserError
    from pipelines.recipes.faults import explain

    values: dict[str, Any] = {
        "files": [str(Path(each).absolute()) if "://" not in each else each for each in files],
        "columns": {name: theirs for name, theirs in renamed.items() if theirs},
        "out": to or "",
        "runtime": {"home": str(home) if home else ""},
    }
    try:
        recipe = BatchPredictionRecipe(**(values | ({"model": model} if model else {})))
    except ValidationError as error:
        raise UserError(explain(error, "batch prediction", BatchPredictionRecipe)) from None
    if surroundings.local_api is not None:
        surroundings.local_api.wait()
    with progress_on_terminal():
        predictions = batch_prediction(recipe)
    statistics = predictions.statistics
    where = to or predictions.url
    if as_json:
        print(json.dumps({**statistics, "answers": where, "fingerprint": predictions.fingerprint}))
        return
    print(
        f"{statistics['rows']:,} rows of {statistics['files']:,} files answered by "
        f"models:/{statistics['model']}: {where}"
    )
