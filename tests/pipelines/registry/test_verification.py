"""What a version must show before an alias points to it, and what a failure leaves: nothing."""

import shutil
from dataclasses import replace

import pytest

from pipelines.errors import UserError
from pipelines.registry.find import version_with_alias
from pipelines.registry.prove import VerificationError, verify
from pipelines.registry.register import RegisteredModel
from pipelines.stages.examples.batches import ExampleReader
from tests.pipelines.registry.classifiers import choose
from tests.pipelines.registry.conftest import MAX_EXAMPLES, Models, package_of, sealed_again

pytestmark = pytest.mark.slow  # every proof is a process that imports torch and MLflow


def tags_of(models: Models, model: RegisteredModel) -> dict[str, str]:
    return models.tracker.client().get_model_version(model.name, str(model.version)).tags


def numbers_of(models: Models, alias: str) -> int | None:
    version = version_with_alias(models.tracker.client(), "encoder", alias)
    return None if version is None else int(version.version)


def test_a_proof_names_the_version_the_data_the_figure_and_the_machine(models: Models) -> None:
    model = models.register(models.trained(1))
    verification = models.verify(model)
    assert verification.comparison == "exact"
    assert verification.evaluation.value == model.metrics["eval/mlm_accuracy"]
    tags = tags_of(models, model)
    assert tags["bertsmith.verified"] == "true"
    assert float(tags["bertsmith.proof.reproduced"]) == model.metrics["eval/mlm_accuracy"]
    assert tags["bertsmith.proof.data"] == models.examples.fingerprint
    assert tags["bertsmith.proof.comparison"] == "exact"
    assert int(tags["bertsmith.proof.items"]) == len(verification.evaluation.answers)
    for key in ("processor", "device", "precision", "threads", "libraries"):
        assert tags[f"bertsmith.proof.{key}"] == tags[f"bertsmith.computed_on.{key}"]


def test_what_is_loaded_is_the_version_and_not_what_an_alias_names_meanwhile(
    models: Models,
) -> None:
    good, other = models.register(models.trained(1)), models.register(models.trained(2))
    other = replace(other, metrics={"eval/mlm_accuracy": 2.0})  # would fail, if it were loaded
    models.tracker.client().set_registered_model_alias("encoder", "candidate", "2")
    verification = models.verify(good)
    assert verification.model.version == 1
    with pytest.raises(VerificationError, match="models:/encoder/2 did not repeat"):
        models.verify(other)


def test_a_rollback_by_hand_survives_runs_that_reuse(models: Models) -> None:
    for seed in (1, 2):
        models.proved_encoder(seed, 0)
        # A run that was killed between proof and promotion is taken up by the next.
        again = models.register(models.trained(seed))
        assert (again.reused, again.is_verified, again.awaits_promotion) == (True, True, True)
        choose(models, "encoder", str(again.version))
    choose(models, "encoder", "1")  # a person goes back
    models.tracker.client().set_registered_model_alias("encoder", "candidate", "1")
    assert not models.register(models.trained(2)).awaits_promotion
    assert [numbers_of(models, alias) for alias in ("champion", "candidate")] == [1, 1]


def test_a_package_that_was_changed_since_is_neither_loaded_nor_proved(models: Models) -> None:
    model = models.register(models.trained(1))
    code = package_of(models, model) / "code" / "bert_core" / "config.py"
    code.write_text(f"print('changed code ran')\n{code.read_text()}")
    with pytest.raises(
        VerificationError, match=r"code/bert_core/config\.py has other bytes"
    ) as raised:
        models.verify(model)
    assert "changed code ran" not in str(raised.value)
    assert not model.is_verified


def test_a_version_that_fails_keeps_its_tags(models: Models) -> None:
    bad, good = models.register(models.trained(1)), models.register(models.trained(2))
    weights = package_of(models, bad) / "artifacts" / "model" / "model.safetensors"
    other = package_of(models, good) / "artifacts" / "model" / "model.safetensors"
    shutil.copyfile(other, weights)
    sealed_again(models, bad)
    before = tags_of(models, bad)
    with pytest.raises(VerificationError, match="models:/encoder/1 did not repeat"):
        models.verify(bad)
    assert tags_of(models, bad) == before
    assert "bertsmith.verified" not in before
    with pytest.raises(UserError, match="has not repeated its logged score"):
        choose(models, "encoder", "1")


def test_on_another_processor_the_figures_are_compared_within_a_stated_bound(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models.register(models.trained(1))
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")  # torch without AVX, as an older one
    models.verify(model)
    num_heldout = min(MAX_EXAMPLES, len(ExampleReader(models.examples, "heldout")))
    assert tags_of(models, model)["bertsmith.proof.comparison"] == (
        f"within {1 / num_heldout:.2g}: logged with a different processor"
    )
    far = replace(model, metrics={"eval/mlm_accuracy": model.metrics["eval/mlm_accuracy"] + 0.03})
    with pytest.raises(VerificationError, match=r"logged with a different processor"):
        models.verify(far)


def test_a_store_that_is_away_says_nothing_about_the_model(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models.register(models.trained(1))
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConnectionError, match="could not be fetched and verified now"):
        verify(model, models.examples, "s3://bucket/store", models.tracker)
