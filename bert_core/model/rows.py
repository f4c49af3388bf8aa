"""User-defined models: rows of a table in, answers out.

A class in one Python file defines such a model, and the file is saved with the weights. Each file
becomes a separate module, named by its hash, so that two classes of one name are never confused.
"""

import hashlib
import inspect
import sys
import traceback
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any, ClassVar, Final, SupportsIndex

import torch
from torch import Tensor

from bert_core.backends.dropout import DropoutKey
from bert_core.batch import RowBatch
from bert_core.model.trainable import Sum, Sums, TrainableModel

Row = Mapping[str, Any]
Kinds = Mapping[str, Any]  # a type for each column

CODE_FILE: Final = "task.py"  # in the folder of a saved model
_ASKED: Final = (str, list[str])
_LEARNED: Final = (str, int, float, list[str], list[int], list[float])
_ANSWERED: Final = (str, int, float, list[str], list[float])
_METHODS: Final = ("texts", "forward", "loss", "answer", "guess", "scored")


class RowModel(TrainableModel):
    """A model whose items are rows: extend it in a file of your own.

    `takes` are the columns of a request, `learns` those that only labelled rows have, `gives` those
    of an answer, each with the type of its values. `score` is the figure of `scored` by which
    models are compared: the greater, the better. `forward` gives [B, ...] outputs, one row for each
    text.
    """

    takes: ClassVar[Kinds]
    learns: ClassVar[Kinds]
    gives: ClassVar[Kinds]
    score: ClassVar[str]
    source: ClassVar[str]  # the file that the class was read from

    figures = ("loss",)

    @staticmethod
    @abstractmethod
    def texts(row: Row) -> Sequence[str | tuple[str, str]]:
        """What the encoder reads for a row: one or more texts, or pairs of texts."""

    @abstractmethod
    def loss(self, outputs: Tensor, row: Row) -> Tensor:
        """[] the loss of a row, from the outputs for its texts, [N, ...]."""

    @abstractmethod
    def answer(self, outputs: Tensor, row: Row) -> dict[str, Any]:
        """The columns of `gives` for a row, as plain values."""

    @staticmethod
    @abstractmethod
    def guess(row: Row) -> dict[str, Any]:
        """The same without a model: a trivial answer, which a model has to beat."""

    @staticmethod
    @abstractmethod
    def scored(answer: Mapping[str, Any], row: Row) -> dict[str, float]:
        """The figures of one answer to a labelled row; a model's are the means over the rows."""

    def loss_sums(self, batch: RowBatch, dropout_key: DropoutKey | None = None) -> Sums:
        outputs = self(batch.tokens, dropout_key).float().split(batch.texts_per_row)
        losses = [self.loss(own, row) for own, row in zip(outputs, batch.rows, strict=True)]
        return {"label": Sum(torch.stack(losses).sum(), len(batch.rows))}

    @torch.no_grad()
    def evaluation_sums(self, batch: RowBatch) -> Sums:
        return {"label_loss": self.loss_sums(batch)["label"]}

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Pickled with its file, which is run where it is read: no other process has its module."""
        if getattr(type(self), "source", None) is None:
            return super().__reduce_ex__(protocol)
        return _without_weights, (self.source, self.head_name), self.__dict__


@cache
def row_model(source: str, name: str) -> type[RowModel]:
    """The class in a file with this text, as the head `name`; the file is run.

    Raises ValueError, in a sentence that begins with the file, where it holds no such class.
    """
    module = _module_of(source, name)
    own = [
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, RowModel)
        and each.__module__ == module.__name__
    ]
    if len(own) != 1:
        names = ", ".join(each.__name__ for each in own) or "none"
        raise ValueError(
            f"{name}.py must hold one class that extends bert_core.RowModel, found {names}; give "
            "each task a file of its own"
        )
    _check(own[0], f"{name}.py")
    own[0].head_name, own[0].source = name, source
    return own[0]


def _without_weights(source: str, name: str) -> RowModel:
    model = row_model(source, name)
    return model.__new__(model)


def _module_of(source: str, name: str) -> ModuleType:
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    module = ModuleType(f"{name}_{digest}")
    # The hash in its name keeps it apart from importable modules.
    module.__file__ = f"{name}.py"
    shown = f"<{name}.py {digest}>"
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, shown, "exec"), vars(module))
    except SyntaxError as error:
        raise ValueError(
            f"{name}.py must be Python, but line {error.lineno} is not ({error.msg}); correct it"
        ) from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = [each.lineno for each in frames if each.filename == shown][-1]
        raise ValueError(
            f"{name}.py could not be run: {type(error).__name__} in line {line} ({error}); it may "
            "import what is installed where models are served, and no other file of yours"
        ) from error
    return module


def _check(model: type[RowModel], file: str) -> None:
    """Raise ValueError for the first thing that the class lacks."""
    for name, kinds in (("takes", _ASKED), ("learns", _LEARNED), ("gives", _ANSWERED)):
        columns = getattr(model, name, None)
        is_table = isinstance(columns, Mapping) and len(columns) > 0
        if not is_table or not all(kind in kinds for kind in dict(columns or {}).values()):
            raise ValueError(
                f"{model.__name__} in {file} must say what it {name}: columns by name, each of "
                f"{', '.join(map(_called, kinds))}, found {columns!r}; add {name} = {{...}}"
            )
    lacks = [name for name in _METHODS if getattr(model, name) is getattr(RowModel, name)]
    lacks += [] if hasattr(model, "score") else ["score"]
    if lacks:
        raise ValueError(f"{model.__name__} in {file} must define {lacks[0]}, found none; add it")
    for name in ("texts", "guess", "scored"):
        if not isinstance(inspect.getattr_static(model, name), staticmethod):
            raise ValueError(
                f"{name} of {model.__name__} in {file} must be a @staticmethod: it is asked "
                "without a model; write that above it"
            )


def _called(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and kind in (str, int, float) else str(kind)
