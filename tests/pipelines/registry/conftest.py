"""A tracker on SQLite and small models with figures that are really theirs."""

import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch

from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.state import save_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import Artifact, Built, Draft
from pipelines.core.cluster.machine import computing_machine
from pipelines.core.stage import StageContext
from pipelines.core.tracking.tracker import Tracker
from pipelines.registry.registration import RegisteredModel, Submission, register
from pipelines.stages.examples.batches import ExampleReader
from pipelines.stages.pretraining.figures import pretraining_figures
from pipelines.stages.vocabulary.stage import load_tokenizer

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


class Models:
    """Makes encoders of random weights, trained by nobody but measured as a training does it."""

    def __init__(
        self, context: StageContext, examples: Artifact, vocabulary: Artifact, tracker: Tracker
    ) -> None:
        self.context = context
        self.examples = examples
        self.vocabulary = vocabulary
        self.tracker = tracker

    def encoder(self, seed: int) -> Artifact:
        """An artifact as pretraining leaves it: weights, tokenizer and held-out figures."""

        def build(draft: Draft) -> Built:
            torch.manual_seed(seed)
            tokenizer: WordPieceTokenizer = load_tokenizer(self.vocabulary)
            config = encoder_config(
                "tiny", self.vocabulary.statistics["size"], max_position_embeddings=64
            )
            model = PretrainingModel(config).eval()
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch) / "saved"
                save_model(folder, model)
                tokenizer.save(folder)
                files = sorted(folder.iterdir())
                for file in files:
                    with draft.file(file.name) as target:
                        target.path.write_bytes(file.read_bytes())
            heldout = ExampleReader(self.examples, "heldout")
            figures = pretraining_figures(model, heldout, MAX_EXAMPLES)
            return Built([file.name for file in files], figures)

        return self.context.store.get_or_build(
            "encoder", version=1, settings={"seed": seed}, inputs={}, build=build
        )

    def trained(self, seed: int) -> Artifact:
        """The same with a finished run in the tracker, whose curve ends at step 30."""
        artifact = self.encoder(seed)
        run_id = self.tracker.create_run("pretraining", artifact.fingerprint, {}, {})
        for step in (10, 30):
            self.tracker.client().log_metric(run_id, "eval/mlm_loss", 6.0, step=step)
        self.tracker.finish(run_id, artifact.statistics, computed_on=computing_machine())
        return artifact

    def submission(self, artifact: Artifact, name: str = "encoder") -> Submission:
        return Submission(
            kind="encoder",
            name=name,
            alias="candidate",
            artifact=artifact,
            lineage={"examples": self.examples},
            recipe_yaml="name: small\n",
        )

    def register(self, artifact: Artifact, name: str = "encoder") -> RegisteredModel:
        return register(self.submission(artifact, name), self.tracker)


def package_of(models: Models, model: RegisteredModel) -> Path:
    """The folder where MLflow keeps the version's package."""
    client = models.tracker.client()
    version = client.get_model_version(model.name, str(model.version))
    logged = client.get_logged_model(version.source.removeprefix("models:/"))
    return Path(urlsplit(logged.artifact_location).path)


@pytest.fixture
def models(
    small_context: StageContext,
    small_examples: Artifact,
    small_vocabulary: Artifact,
    tracker: Tracker,
) -> Models:
    return Models(small_context, small_examples, small_vocabulary, tracker)
