"""A registered model: rows in, answers out; which columns, its head says.

MLflow runs this file where the model is loaded; `bert_core` travels in the model's own code. Before
any of that is imported, the package is held against the list of its files.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc import PythonModel, PythonModelContext

_FOLDER = Path(__file__).parent


def _refuse_changed_package() -> None:
    """Raise ChangedPackageError where this file's package is not the one that was sealed."""
    if not (_FOLDER / "MLmodel").is_file():
        return  # it is being packed
    spec = importlib.util.spec_from_file_location("package_seal", _FOLDER / "seal.py")
    assert spec is not None and spec.loader is not None
    seal = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(seal)
    seal.sealed_files(_FOLDER)


@contextmanager
def _sources_alone() -> Iterator[None]:
    """Python reads and writes no bytecode beside the sources: that is nothing that was sealed."""
    before = sys.pycache_prefix, sys.dont_write_bytecode
    sys.pycache_prefix, sys.dont_write_bytecode = str(_FOLDER / "no-such-folder"), True
    try:
        yield
    finally:
        sys.pycache_prefix, sys.dont_write_bytecode = before


with _sources_alone():
    _refuse_changed_package()
    from bert_core.inference.confidence import least_probability
    from bert_core.inference.tables import answer_table, gives_one_probability, question_of
    from bert_core.model.catalogue import described
    from bert_core.training.state import load_model
    from bert_core.vocabulary import WordPieceTokenizer


class ServedModel(PythonModel):
    """Answer each row of a table."""

    def load_context(self, context: PythonModelContext) -> None:
        """Read weights, labels and tokenizer."""
        self.folder = folder = Path(context.artifacts["model"])
        self.model = load_model(folder).pack()
        self.tokenizer = WordPieceTokenizer.from_directory(folder)

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        """A row of answers for each row; MlflowException, a bad request, where there is none.

        Of classes and choices, `params` may ask for a `min_confidence`, or for a `min_precision`,
        which the model's table translates: less sure answers are None, beside a `guess`.
        """
        question, asked = question_of(self.model), params or {}
        try:
            # A client may send null.
            least, precision = (
                asked.get(name) or 0.0 for name in ("min_confidence", "min_precision")
            )
            if (least and precision) or not (0 <= least < 1 and 0 <= precision < 1):
                raise ValueError("give min_confidence or min_precision, from 0 to below 1")
            if (least or precision) and not gives_one_probability(self.model):
                raise ValueError(
                    f"{described(self.model.head_name)} gives no one probability a row; leave out "
                    "min_confidence and min_precision"
                )
            if precision:
                least = least_probability(self.folder, precision)
            columns = {
                name: [_cell(value) for value in model_input[name]]
                for name in (*question.columns, *question.optional)
                if name in model_input
                and not (name in question.optional and model_input[name].isna().all())
            }
            answers = answer_table(self.model, self.tokenizer, columns, min_confidence=least)
        except ValueError as error:
            raise MlflowException(str(error), error_code=INVALID_PARAMETER_VALUE) from error
        return pd.DataFrame({name: _column(values) for name, values in answers.items()})


def _column(values: list[Any]) -> "pd.Series[Any]":
    """Vectors as lists of numbers, which every client can read; whole numbers beside None as such.

    pandas would make decimals of them.
    """
    cells = [each.tolist() if isinstance(each, np.ndarray) else each for each in values]
    is_withheld = any(each is None for each in cells) and any(
        isinstance(each, int) for each in cells
    )
    return pd.Series(cells, dtype=object if is_withheld else None)


def _cell(value: Any) -> Any:
    """Bytes as the text that they are in UTF-8; raises ValueError where they are none."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    return None if value is None or value is pd.NA else value


mlflow.models.set_model(ServedModel())
