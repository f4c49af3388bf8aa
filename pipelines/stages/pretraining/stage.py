"""Stage: from training examples to a pretrained encoder."""

from pipelines.errors import UserError
from pipelines.stage import StageContext
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.pretraining import PRETRAINING
from pipelines.stages.pretraining.continuing import settings_for
from pipelines.stages.pretraining.settings import PretrainingSettings, split_of
from pipelines.stages.pretraining.training import PretrainingJob
from pipelines.stages.vocabulary.stage import load_tokenizer
from pipelines.store import Artifact, Built, Draft
from pipelines.train.arithmetic import resolve, trains_best_on_single_threads
from pipelines.train.checkpoints import CheckpointFolder
from pipelines.train.imported_models import existing_encoder
from pipelines.train.launch import launched
from pipelines.train.runs import finish_run, open_run, training_input, training_statistics
from pipelines.train.saving import MODEL_FILES, publish_model

STAGE = PRETRAINING.name


def build_encoder(
    settings: PretrainingSettings, examples: Artifact, vocabulary: Artifact, context: StageContext
) -> Artifact:
    """Pretrain an encoder on `examples`, from random weights or from an existing encoder.

    Its artifact holds weights, tokenizer and curve. Raises UserError where the examples were made
    with another vocabulary, or in a way that the settings do not go with.
    """
    if examples.manifest.inputs.get("vocabulary") != vocabulary.fingerprint:
        raise UserError(
            f"the examples {examples.fingerprint} were made with another vocabulary than "
            f"{vocabulary.fingerprint}; build them again with this one"
        )
    fault = settings.fault_with(ExampleSettings.model_validate(examples.manifest.settings))
    if fault:
        raise UserError(fault)
    arithmetic, context = resolve(settings.precision, context)
    inputs = {"examples": examples, "vocabulary": vocabulary}
    encoder = None
    if settings.encoder is not None:
        encoder = existing_encoder(settings.encoder, context)
        settings = settings_for(settings, encoder, examples, vocabulary, context.observe)
        inputs["encoder"] = encoder
    plain = settings.model_dump(mode="json")
    if settings.budget_minutes is not None:
        plain["num_steps"] = None  # measured once it trains: the budget names the encoder
    job = PretrainingJob(
        stage=STAGE,
        settings=settings,
        precision=arithmetic.precision,
        cut=split_of(settings),
        one_thread_each=trains_best_on_single_threads(settings.size),
        examples=examples,
        vocabulary=vocabulary,
        encoder=encoder,
    )

    def build(draft: Draft) -> Built:
        data = training_input(examples, examples.statistics["train"]["examples"])
        with (
            open_run(STAGE, plain, draft, context, [data]) as run_id,
            launched(job, CheckpointFolder.of(draft), context, run_id) as (checkpoint, result),
        ):
            publish_model(draft, checkpoint, load_tokenizer(vocabulary), result)
        statistics = {
            **result["final"],
            "num_steps": result["num_steps"],
            **training_statistics(result),
        }
        return Built(MODEL_FILES, statistics)

    artifact = context.store.get_or_build(
        PRETRAINING.kind,
        version=PRETRAINING.version,
        settings=arithmetic.named_in(plain),
        inputs=inputs,
        build=build,
    )
    finish_run(artifact, context)
    return artifact
