"""`predict --batch`: a registered model answers whole files, as one flow run."""

import json
from pathlib import Path
from typing import Any

from flows.cli.registry import explained, model_address, newest_at, say
from flows.environment import home_folder, prepare_flows
from flows.stopping import stop_in_order
from pipelines.config.errors import UserError
from pipelines.registry.find import is_folder


def predict_batch(
    model: str | None,
    kinds: tuple[str, ...],
    files: list[str],
    renamed: dict[str, str | None],
    to: str | None,
    home: Path | None,
    *,
    as_json: bool,
) -> None:
    """Run the flow over `files` and print where its answers are.

    Without `model` the newest champion of `kinds` answers.
    """
    if model is not None and is_folder(model):
        raise UserError(
            f"--batch needs a registered model, and {model} is a folder; register it with "
            "`bertsmith import`, or answer with --file"
        )
    if model is None:
        model = newest_at(home, *kinds)
        say(f"model: {model_address(model)}")
    stop_in_order()
    wait_for_api = prepare_flows(home_folder(home))
    from flows.predict import BatchPredictionRecipe, predict
    from flows.reporting.progress_line import progress_on_terminal

    values: dict[str, Any] = {
        "files": [str(Path(each).absolute()) if "://" not in each else each for each in files],
        "columns": {name: theirs for name, theirs in renamed.items() if theirs},
        "model": model,
        "out": to or "",
        "runtime": {"home": str(home) if home else ""},
    }
    with explained("batch prediction", BatchPredictionRecipe):
        recipe = BatchPredictionRecipe(**values)
    wait_for_api()
    with progress_on_terminal():
        predictions = predict(recipe)
    statistics = predictions.statistics
    where = to or predictions.url
    if as_json:
        print(json.dumps({**statistics, "answers": where, "fingerprint": predictions.fingerprint}))
        return
    print(
        f"{statistics['rows']:,} rows of {statistics['files']:,} files answered by "
        f"models:/{statistics['model']}: {where}"
    )
