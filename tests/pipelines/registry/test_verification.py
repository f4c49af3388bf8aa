"""What a version must show before an alias points to it, and what a failure leaves: nothing."""

import shutil
from dataclasses import replace

import pytest

from pipelines.errors import UserError
from pipelines.registry.find import version_with_alias
from pipelines.registry.promote import awaiting_promotion
from pipelines.registry.prove import Proof, VerificationError, verify
from pipelines.registry.register import RegisteredModel
from pipelines.stages.examples.batches import ExampleReader
from tests.pipelines.registry.classifiers import choose
from tests.pipelines.registry.conftest import MAX_EXAMPLES, Models, package_of, sealed_again

pytestmark = pytest.mark.slow  # every proof is a process that imports torch and MLflow


def proof_of(models: Models, model: RegisteredModel) -> Proof:
    return Proof(model=model, data=models.examples, max_examples=MAX_EXAMPLES)


def verified(models: Models, *registered: RegisteredModel):
    proofs = [proof_of(models, model) for model in registered]
    return verify(proofs, models.context.store.url, models.tracker)


def tags_of(models: Models, model: RegisteredModel) -> dict[str, str]:
    return models.tracker.client().get_model_version(model.name, str(model.version)).tags


def numbers_of(models: Models, alias: str) -> int | None:
    version = version_with_alias(models.tracker.client(), "encoder", alias)
    return None if version is None else int(version.version)


def test_a_proof_names_the_version_the_data_the_figure_and_the_machine(models: Models) -> None:
    model = models.register(models.trained(1))
    (verification,) = verified(models, model)
    assert verification.comparison == "exact"
    assert verification.reproduced == verification.logged
    tags = tags_of(models, model)
    assert tags["bertsmith.verified"] == "true"
    assert tags["bertsmith.proof.loaded"] == "models:/encoder/1"
    assert float(tags["bertsmith.proof.reproduced"]) == model.metrics["eval/mlm_accuracy"]
    assert tags["bertsmith.proof.data"] == models.examples.fingerprint
    assert tags["bertsmith.proof.comparison"] == "exact"
    assert int(tags["bertsmith.proof.items"]) == verification.evaluation.num_items
    for key in ("processor", "device", "precision", "threads", "libraries"):
        assert tags[f"bertsmith.proof.{key}"] == tags[f"bertsmith.computed_on.{key}"]


def test_what_is_loaded_is_the_version_and_not_what_an_alias_names_meanwhile(
    models: Models,
) -> None:
    good, other = models.register(models.trained(1)), models.register(models.trained(2))
    other = replace(other, metrics={"eval/mlm_accuracy": 2.0})  # would fail, if it were loaded
    models.tracker.client().set_registered_model_alias("encoder", "candidate", "2")
    (verification,) = verified(models, good)
    assert verification.model.version == 1
    with pytest.raises(VerificationError, match="models:/encoder/2 did not repeat"):
        verified(models, other)


def test_a_rollback_by_hand_survives_runs_that_reuse(models: Models) -> None:
    first = models.register(models.trained(1))
    for model in awaiting_promotion([first], verified(models, first)):
        choose(models, model.name, str(model.version))
    second = models.register(models.trained(2))
    for model in awaiting_promotion([second], verified(models, second)):
        choose(models, model.name, str(model.version))
    assert numbers_of(models, "champion") == 2
    choose(models, "encoder", "1")  # a person goes back

    again = models.register(models.trained(2))
    assert (again.reused, again.is_verified) == (True, True)
    assert awaiting_promotion([again], []) == []
    assert numbers_of(models, "champion") == 1
    models.tracker.client().set_registered_model_alias("encoder", "candidate", "1")
    models.register(models.trained(2))
    assert numbers_of(models, "candidate") == 1


def test_a_run_killed_between_proof_and_promotion_is_taken_up_by_the_next(models: Models) -> None:
    model = models.register(models.trained(1))
    verified(models, model)  # and here the process is lost
    again = models.register(models.trained(1))
    assert awaiting_promotion([again], []) == [again]
    choose(models, "encoder", "1")
    assert not models.register(models.trained(1)).awaits_promotion


def test_a_version_that_fails_keeps_its_tags_and_others_still_get_theirs(models: Models) -> None:
    bad, good = models.register(models.trained(1)), models.register(models.trained(2))
    weights = package_of(models, bad) / "artifacts" / "model" / "model.safetensors"
    other = package_of(models, good) / "artifacts" / "model" / "model.safetensors"
    shutil.copyfile(other, weights)
    sealed_again(models, bad)
    before = tags_of(models, bad)
    with pytest.raises(VerificationError, match="models:/encoder/1 did not repeat") as told:
        verified(models, bad, good)
    assert "models:/encoder/2" not in str(told.value)
    assert tags_of(models, bad) == before
    assert "bertsmith.verified" not in before
    assert tags_of(models, good)["bertsmith.verified"] == "true"
    assert numbers_of(models, "champion") is None
    with pytest.raises(UserError, match="has not repeated its logged accuracy"):
        choose(models, "encoder", "1")


def test_other_libraries_than_the_declared_ones_are_refused(models: Models) -> None:
    model = models.register(models.trained(1))
    requirements = package_of(models, model) / "requirements.txt"
    requirements.write_text("torch==1.0.0\nno-such-package==3\n")
    sealed_again(models, model)
    with pytest.raises(VerificationError, match=r"torch \S+ instead of ==1\.0\.0, no-such-package"):
        verified(models, model)
    assert "bertsmith.verified" not in tags_of(models, model)


def test_on_another_processor_the_figures_are_compared_within_a_stated_bound(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models.register(models.trained(1))
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")  # torch without AVX, as an older one
    (verification,) = verified(models, model)
    num_heldout = min(MAX_EXAMPLES, len(ExampleReader(models.examples, "heldout")))
    assert verification.bound == 1 / num_heldout
    assert tags_of(models, model)["bertsmith.proof.comparison"] == (
        f"within {1 / num_heldout:.2g}: logged with a different processor"
    )
    far = replace(model, metrics={"eval/mlm_accuracy": model.metrics["eval/mlm_accuracy"] + 0.03})
    with pytest.raises(VerificationError, match=r"logged with a different processor"):
        verified(models, far)


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
        verify([proof_of(models, model)], "s3://bucket/store", models.tracker)


def test_a_package_that_was_changed_since_is_neither_loaded_nor_proved(models: Models) -> None:
    model = models.register(models.trained(1))
    code = package_of(models, model) / "code" / "bert_core" / "config.py"
    code.write_text(f"print('changed code ran')\n{code.read_text()}")
    with pytest.raises(
        VerificationError, match=r"code/bert_core/config\.py has other bytes"
    ) as told:
        verified(models, model)
    assert "changed code ran" not in str(told.value)
    assert "bertsmith.verified" not in tags_of(models, model)
