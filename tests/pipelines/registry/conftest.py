"""A tracker on SQLite and small models with figures that are really theirs."""

import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch

from bert_core.config import encoder_config
from bert_core.model.catalogue import Model, PretrainingModel, count_parameters
from bert_core.training.loop import train
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig
from bert_core.training.state import save_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.registry.find import DIGEST_TAG
from pipelines.registry.prove import Verification, verify
from pipelines.registry.register import RegisteredModel, Submission, register
from pipelines.registry.seal import seal
from pipelines.stage import StageContext
from pipelines.stages.examples.batches import ExampleReader, micro_batches
from pipelines.stages.pretraining.figures import HeldoutExamples
from pipelines.stages.vocabulary.stage import load_tokenizer
from pipelines.store import Artifact, Built, Draft
from pipelines.tracking.tracker import Tracker
from pipelines.versions import computing_machine

MAX_EXAMPLES = 50


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's database as it makes it, which takes seconds; tests copy it."""
    path = tmp_path_factory.mktemp("tracker") / "mlflow.db"
    Tracker(uri=f"sqlite:///{path}", experiment="unused").client().search_experiments()
    return path


@pytest.fixture
def tracker(tmp_path: Path, empty_database: Path) -> Tracker:
    """A tracker of its own for a test."""
    shutil.copyfile(empty_database, tmp_path / "mlflow.db")
    return Tracker(
        uri=f"sqlite:///{tmp_path / 'mlflow.db'}",
        experiment="tests",
        artifact_location=(tmp_path / "files").as_uri(),
    )


def write_model(draft: Draft, model: Model, tokenizer: WordPieceTokenizer) -> list[str]:
    """The files of a model with its tokenizer, as a stage leaves them; returns their names."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "saved"
        save_model(folder, model)
        tokenizer.save(folder)
        names = sorted(path.name for path in folder.iterdir())
        for name in names:
            draft.write(name, (folder / name).read_bytes())
    return names


class Models:
    """Makes encoders of random weights, untrained, but measured as a training run does it."""

    def __init__(
        self, context: StageContext, examples: Artifact, vocabulary: Artifact, tracker: Tracker
    ) -> None:
        self.context = context
        self.examples = examples
        self.vocabulary = vocabulary
        self.tracker = tracker

    def encoder(self, seed: int, steps: int = 0) -> Artifact:
        """An artifact as pretraining leaves it: weights, tokenizer and held-out figures."""

        def build(draft: Draft) -> Built:
            torch.manual_seed(seed)
            tokenizer: WordPieceTokenizer = load_tokenizer(self.vocabulary)
            config = encoder_config(
                "tiny", self.vocabulary.statistics["size"], max_position_embeddings=64
            )
            model = PretrainingModel(config)
            reader = ExampleReader(self.examples, "train")

            def batches(step: int) -> list:
                sizes = {"global_batch_size": 16, "micro_batch_size": 16}
                return list(micro_batches(reader, seed=seed, step=step, **sizes))

            if steps:
                optimization = OptimizationConfig(num_steps=steps, learning_rate=2e-3)
                for _ in train(model, AdamW(model, optimization), batches, seed=seed):
                    pass
            model.eval()
            files = write_model(draft, model, tokenizer)
            heldout = HeldoutExamples(self.examples, tokenizer, 0, 1)
            figures = heldout.figures(model, MAX_EXAMPLES)
            statistics = {**figures, "num_parameters": count_parameters(model)}
            return Built(files, statistics)

        return self.context.store.get_or_build(
            "encoder", version=1, settings={"seed": seed, "steps": steps}, inputs={}, build=build
        )

    def trained(self, seed: int, steps: int = 0) -> Artifact:
        """The same with a finished run in the tracker."""
        artifact = self.encoder(seed, steps)
        run_id = self.tracker.create_run("pretraining", artifact.fingerprint, {}, {})
        self.tracker.finish(run_id, artifact.statistics, computed_on=computing_machine())
        return artifact

    def submission(
        self, artifact: Artifact, name: str = "encoder", recipe_yaml: str = "name: small\n"
    ) -> Submission:
        return Submission(
            kind="encoder",
            name=name,
            alias="candidate",
            artifact=artifact,
            lineage={"examples": self.examples},
            recipe_yaml=recipe_yaml,
        )

    def proved_encoder(self, seed: int, steps: int) -> RegisteredModel:
        """One as a version that repeated its figure."""
        model = self.register(self.trained(seed, steps))
        self.verify(model)
        return model

    def verify(self, model: RegisteredModel) -> Verification:
        return verify(
            model, self.examples, self.context.store.url, self.tracker, max_examples=MAX_EXAMPLES
        )

    def register(self, artifact: Artifact, name: str = "encoder") -> RegisteredModel:
        return register(self.submission(artifact, name), self.tracker)


def package_of(models: Models, model: RegisteredModel) -> Path:
    """The folder where MLflow keeps the version's package."""
    client = models.tracker.client()
    version = client.get_model_version(model.name, str(model.version))
    logged = client.get_logged_model(version.source.removeprefix("models:/"))
    return Path(urlsplit(logged.artifact_location).path)


def sealed_again(models: Models, model: RegisteredModel) -> None:
    """What the registry's administrator may do: the package as it is now counts as registered."""
    client = models.tracker.client()
    digest = seal(package_of(models, model))
    client.set_model_version_tag(model.name, str(model.version), DIGEST_TAG, digest)


@pytest.fixture
def models(
    small_context: StageContext,
    small_examples: Artifact,
    small_vocabulary: Artifact,
    tracker: Tracker,
) -> Models:
    return Models(small_context, small_examples, small_vocabulary, tracker)
