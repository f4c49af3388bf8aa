"""A registered model as ONNX: written, compared with the original, and quantized."""

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import torch

from bert_core.files.folders import publish
from bert_core.inference.probing import PROBES
from bert_core.inference.texts import BATCH_TOKENS, encode_texts
from bert_core.model.catalogue import (
    LanguageModel,
    Model,
    PretrainingModel,
    count_parameters,
    described,
)
from bert_core.onnx import (
    MODEL_FILE,
    QUANTIZED_FILE,
    OnnxModel,
    encoder_alone,
    quantize,
    write_onnx_folder,
)
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import ArtifactStore
from pipelines.config.errors import UserError
from pipelines.registry.card import Measured, OnnxExport, onnx_card
from pipelines.registry.comparison.evaluation import Candidate, CannotCompareError, candidate_of
from pipelines.registry.exchange import writing_to
from pipelines.registry.finding import find_model, is_folder
from pipelines.registry.opening import OpenedModel, open_model
from pipelines.tracking.tracker import Tracker

# Of the model's largest output, or of 1 where that is less: float32 sums in another order.
MOST_DIFFERENT: Final = 1e-4
_SAME_SCORE: Final = 0.001  # or one item's answer, which may hang by a rounding
_LIBRARIES: Final = ("onnx", "onnxscript", "onnxruntime")

Score = Callable[[Model], float]


def export_onnx_version(
    tracker: Tracker,
    store: ArtifactStore,
    reference: str,
    target: Path,
    *,
    pooling: str | None,
    quantized: bool,
    tolerance: float,
) -> OnnxExport:
    """Write the model that `reference` names as the new folder `target`, verified.

    ONNX Runtime answers the version's held-out items, or some texts where the store has none; its
    values must be the model's, and so must the score. With `quantized` an int8 file is written
    beside, whose score may be lower by at most `tolerance`. With `pooling` the encoder alone is
    written. Raises UserError, and leaves nothing behind, where any of this does not hold.
    """
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise UserError(f"ONNX needs {', '.join(missing)}; pip install 'bertsmith[onnx]'")
    model, tokenizer = open_model(tracker, reference)
    with writing_to(target):
        if pooling is not None:
            model = encoder_alone(model, pooling)
        candidate, reason = None, "a folder has none"
        if pooling is not None:
            reason = "vectors of an encoder have none"
        elif not is_folder(reference):
            candidate, reason = _candidate(tracker, store, reference)
        if quantized and candidate is None:
            raise UserError(
                "int8 changes a model's answers, and what that costs is measured on held-out "
                f"items: {reason}; leave out --quantize, or name a version whose held-out items "
                "are in the store"
            )
        exports: list[OnnxExport] = []

        def write(draft: Path) -> None:
            write_onnx_folder(draft, model, tokenizer)
            made = _verified((model, tokenizer), draft, candidate, reason)
            if quantized:
                made = _with_int8(made, (model, tokenizer), draft, candidate, tolerance)
            (draft / "README.md").write_text(onnx_card(made, reference, model), encoding="utf-8")
            exports.append(made)

        publish(target, write)
    return exports[0]


def _candidate(
    tracker: Tracker, store: ArtifactStore, reference: str
) -> tuple[Candidate | None, str]:
    """The version with its held-out items, or why there are none."""
    try:
        return candidate_of(find_model(tracker.client(), reference), store), ""
    except CannotCompareError as error:
        return None, str(error)


def _verified(
    opened: OpenedModel, draft: Path, candidate: Candidate | None, reason: str
) -> OnnxExport:
    """The export with `model.onnx`; ValueError where values or score are not the model's."""
    model, tokenizer = opened
    score = None if candidate is None else _heldout_score(tokenizer, candidate)
    ours = None if score is None else score(model)
    onnx = OnnxModel(draft / MODEL_FILE, model)
    found = _measured(onnx, tokenizer, score)
    if found.difference > MOST_DIFFERENT * max(1.0, found.magnitude):
        raise ValueError(
            f"ONNX Runtime computes other values than the model: one differs by "
            f"{found.difference:.3g}, more than {MOST_DIFFERENT:g} of the largest "
            f"({found.magnitude:.3g}); nothing was written"
        )
    if found.score is not None and ours is not None:
        bound = max(_SAME_SCORE, 1 / onnx.num_sequences)
        if abs(found.score - ours) > bound:
            raise ValueError(
                f"with ONNX Runtime the score is {found.score:.4f} instead of {ours:.4f}, more "
                f"than {bound:.2g} apart; nothing was written"
            )
    count = f"{onnx.num_sequences:,}"
    return OnnxExport(
        called=described(model.head_name),
        num_parameters=count_parameters(model),
        items=f"{count} texts, because {reason}" if candidate is None
        else f"{count} held-out sequences ({candidate.data.kind}/{candidate.data.fingerprint})",
        metric="" if candidate is None else candidate.metric.removeprefix("eval/"),
        score=ours,
        files=(found,),
    )  # fmt: skip


def _with_int8(
    made: OnnxExport,
    opened: OpenedModel,
    draft: Path,
    candidate: Candidate | None,
    tolerance: float,
) -> OnnxExport:
    """The same with an int8 file added; ValueError where its score is too low."""
    assert candidate is not None
    model, tokenizer = opened
    quantize(draft)
    onnx = OnnxModel(draft / QUANTIZED_FILE, model)
    found = _measured(onnx, tokenizer, _heldout_score(tokenizer, candidate))
    before, after = made.files[0].score, found.score
    assert before is not None and after is not None
    if not before - after <= tolerance:  # NaN is no score either
        raise ValueError(
            f"int8 may lower the held-out {made.metric} by at most {tolerance:g}, found "
            f"{after:.4f} after {before:.4f}; nothing was written: leave out --quantize, or allow "
            "more with --tolerance"
        )
    return replace(made, files=(*made.files, found))


def _measured(onnx: OnnxModel, tokenizer: WordPieceTokenizer, score: Score | None) -> Measured:
    answering, reached = onnx.answering(compared=True), None
    with torch.inference_mode():
        if score is not None:
            reached = score(answering)
        else:
            texts = encode_texts(tokenizer, PROBES, onnx.model.config.max_position_embeddings)
            for _, tokens in texts.batches(BATCH_TOKENS):
                onnx.compare(tokens)
    return Measured(
        file=onnx.path.name,
        num_bytes=onnx.num_bytes,
        difference=onnx.difference,
        magnitude=onnx.magnitude,
        score=reached,
        sequences_per_second=onnx.num_sequences / onnx.seconds,
    )


def _heldout_score(tokenizer: WordPieceTokenizer, candidate: Candidate) -> Score:
    """A function that computes the figure of the version's proof on its held-out items."""
    if candidate.is_encoder:
        from pipelines.stages.examples.batches import ExampleReader
        from pipelines.stages.pretraining.figures import pretraining_figures

        reader, most = ExampleReader(candidate.data, "heldout"), candidate.max_examples

        def figure(model: Model) -> float:
            assert isinstance(model, PretrainingModel | LanguageModel), type(model)
            return pretraining_figures(model, reader, most)[candidate.metric]

        return figure
    from pipelines.stages.dataset.stage import family_of, read_items
    from pipelines.tasks import Reading

    family, items = family_of(candidate.data), read_items(candidate.data, "heldout")

    def score(model: Model) -> float:
        reading = Reading(model.config.max_position_embeddings)
        answers = family.answers(model, tokenizer, items, reading)
        return family.figures(answers, items)[candidate.metric]

    return score
