"""A version whose bytes changed after its registration is refused, whoever loads it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.errors import UserError
from pipelines.registry.find import DIGEST_TAG
from pipelines.registry.package import open_model
from pipelines.registry.seal import SEAL_FILE, ChangedPackageError, seal, sealed_files
from tests.pipelines.registry.conftest import Models, package_of

WEIGHTS = "artifacts/model/model.safetensors"
CONFIG = "artifacts/model/config.json"
CODE = "code/bert_core/config.py"


def flip(path: Path) -> None:
    """Change one bit, in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def in_other_words(path: Path) -> None:
    values = json.loads(path.read_text())
    values["encoder"]["layer_norm_eps"] = 1e-3
    path.write_text(json.dumps(values))


def one_line_more(path: Path) -> None:
    path.write_text(path.read_text() + "\nprint('hello')\n")


CHANGES: dict[str, Callable[[Path], None]] = {
    WEIGHTS: flip, CONFIG: in_other_words, CODE: one_line_more, "MLmodel": one_line_more,
    "served_model.py": one_line_more,
}  # fmt: skip


def test_a_changed_file_is_refused_by_our_commands(models: Models) -> None:
    model = models.register(models.encoder(1))
    open_model(models.tracker, model.reference)
    for name, change in CHANGES.items():
        path = package_of(models, model) / name
        whole = path.read_bytes()
        change(path)
        changed = f"that were registered, but {name} has other bytes"
        with pytest.raises(UserError, match=changed) as refused:
            open_model(models.tracker, model.reference)
        assert "delete the version and register its model again" in str(refused.value)
        assert "\n" not in str(refused.value)
        path.write_bytes(whole)


def test_a_file_too_many_and_one_too_few_are_refused(models: Models) -> None:
    model = models.register(models.encoder(1))
    package = package_of(models, model)
    shadow = package / "code" / "torch.py"  # its folder comes first where modules are looked for
    shadow.write_text("print('not torch')")
    with pytest.raises(UserError, match=r"code/torch\.py was added"):
        open_model(models.tracker, model.reference)
    shadow.unlink()
    (package / CODE).unlink()
    with pytest.raises(UserError, match=f"{CODE} is missing"):
        open_model(models.tracker, model.reference)


def test_a_link_is_refused_where_the_package_is_read_and_where_it_is_sealed(
    models: Models, tmp_path: Path
) -> None:
    model = models.register(models.encoder(1))
    package = package_of(models, model)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "__init__.py").write_text("print('linked code ran')")
    (package / "code" / "json").symlink_to(elsewhere)  # a folder: no file of it would be hashed
    with pytest.raises(UserError, match="code/json is a symbolic link"):
        open_model(models.tracker, model.reference)
    with pytest.raises(ChangedPackageError, match="is a symbolic link"):
        seal(package)


def test_a_package_that_is_sealed_again_is_not_what_the_registry_names(models: Models) -> None:
    model = models.register(models.encoder(1))
    package = package_of(models, model)
    flip(package / WEIGHTS)
    digest = seal(package)
    with pytest.raises(UserError, match="is not the list that the registry keeps the digest of"):
        open_model(models.tracker, model.reference)
    client = models.tracker.client()
    client.delete_model_version_tag("encoder", "1", DIGEST_TAG)
    with pytest.raises(UserError, match=f"has no tag {DIGEST_TAG}"):
        open_model(models.tracker, model.reference)
    # Who may change the tags, too, is believed.
    client.set_model_version_tag("encoder", "1", DIGEST_TAG, digest)
    open_model(models.tracker, model.reference)


def test_what_mlflow_and_python_write_into_a_package_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"weights")
    digest = seal(tmp_path)
    (tmp_path / "registered_model_meta").write_text("model_name: encoder")
    (tmp_path / "code" / "__pycache__").mkdir(parents=True)
    (tmp_path / "code" / "__pycache__" / "config.cpython-311.pyc").write_bytes(b"")
    assert list(sealed_files(tmp_path, digest)) == ["weights"]
    (tmp_path / SEAL_FILE).unlink()
    with pytest.raises(ChangedPackageError, match=f"{SEAL_FILE} is missing"):
        sealed_files(tmp_path, digest)


LOADED = """
import sys
import mlflow
mlflow.set_tracking_uri({uri!r})
model = mlflow.pyfunc.load_model("models:/encoder/1")
print(len(model.predict([{{"text": "a sum"}}])["embedding"][0]))
"""


def served(models: Models, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """A version loaded as downstream code does it, where no Bertsmith can be imported."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-P", "-c", LOADED.format(uri=models.tracker.uri)],
        cwd=elsewhere, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": "", "MLFLOW_TRACKING_URI": models.tracker.uri},
    )  # fmt: skip


@pytest.mark.slow
def test_a_changed_package_is_refused_by_the_served_model_itself(
    models: Models, tmp_path: Path
) -> None:
    model = models.register(models.encoder(1))
    package = package_of(models, model)
    good = served(models, tmp_path)
    assert good.stdout.strip() == "128", good.stderr
    for name in (WEIGHTS, CONFIG, CODE):
        whole = (package / name).read_bytes()
        CHANGES[name](package / name)
        refused = served(models, tmp_path)
        assert refused.returncode != 0
        assert f"must be the bytes that were registered, but {name} has other bytes" in (
            refused.stderr
        )
        assert "hello" not in refused.stdout  # no line of the changed code ran
        (package / name).write_bytes(whole)
    assert served(models, tmp_path).returncode == 0


def test_a_package_holds_no_pickle(models: Models) -> None:
    model = models.register(models.encoder(1))
    names = {path.suffix for path in package_of(models, model).rglob("*")}
    assert ".safetensors" in names
    assert not names & {".pkl", ".pickle", ".pt", ".bin"}
