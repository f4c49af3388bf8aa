"""The wheel and the sdist, away from the repository: a command, the presets, a whole run."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.conftest import SMALL_RECIPE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PRESETS = ROOT / "pipelines" / "recipes" / "presets"
# What one installation must not tell another of.
OWN = ("PYTHONPATH", "PYTHONHOME", "BERTSMITH_HOME", "MLFLOW_TRACKING_URI", "PREFECT_API_URL")


def run(command: list[str | Path], folder: Path) -> str:
    """What the command prints; its complaints where it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in OWN}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from the sdist's own files."""
    pytest.importorskip("build", reason="the package `build` makes the distributions")
    folder = tmp_path_factory.mktemp("distributions")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode != 0:
        pytest.skip("git knows which files are the repository's, and this folder is none of its")
    checkout = folder / "checkout"
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, checkout / name)
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist"], checkout)
    return folder / "dist"


@pytest.fixture(scope="module")
def installed(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment: the wheel, and the libraries of the one that runs."""
    folder = tmp_path_factory.mktemp("environment")
    run([sys.executable, "-m", "venv", folder], distributions)
    (wheel,) = distributions.glob("*.whl")
    python = folder / "bin" / "python"
    run([python, "-m", "pip", "install", "--no-deps", "--no-index", wheel], distributions)
    site = run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder)
    libraries = [path for path in sys.path if Path(path).name == "site-packages"]
    (Path(site.strip()) / "libraries.pth").write_text("\n".join(libraries) + "\n")
    return folder / "bin"


def test_both_hold_every_file_that_the_packages_read(distributions: Path) -> None:
    (wheel,), (sdist,) = distributions.glob("*.whl"), distributions.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    packages = [ROOT / name for name in ("bert_core", "pipelines", "flows")]
    files = {
        path.relative_to(ROOT).as_posix()
        for package in packages
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert len(files) > 150
    assert not files - in_wheel
    assert not files - in_sdist
    wanted = {"LICENSE", "THIRD-PARTY-NOTICES.md", "CHANGELOG.md", "constraints.txt", "README.md"}
    assert not {*wanted, "infra/prefect.yaml"} - in_sdist
    assert {Path(name).name for name in in_wheel} >= {"LICENSE", "prefect.yaml"}
    strangers = {name.partition("/")[0] for name in in_wheel} - {"bert_core", "pipelines", "flows"}
    assert all(name.startswith("bertsmith-") for name in strangers), strangers


def test_commands_answer_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    whose = "import flows, pipelines, bert_core; print(flows.__file__, pipelines.__file__)"
    assert str(ROOT) not in run([installed / "python", "-c", whose], tmp_path)
    assert "Raw text to a registered" in run([installed / "bertsmith", "--help"], tmp_path)
    assert run([installed / "bertsmith", "--version"], tmp_path).startswith("bertsmith 0.")
    listed = run([installed / "bertsmith", "recipes"], tmp_path)
    assert all(preset.stem in listed for preset in PRESETS.glob("*.yaml"))
    shown = run([installed / "bertsmith", "run", "demo", "--show-recipe"], tmp_path)
    assert yaml.safe_load(shown)["name"] == "demo"


def test_raw_text_becomes_registered_models_in_an_empty_folder(
    installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "small.yaml").write_text(
        SMALL_RECIPE.replace("with_random: true", "with_random: false")
    )
    own = ("random.py", "tokenizers.py")  # a person's own files
    for name in own:
        (tmp_path / name).write_text("raise SystemExit('the wrong module')")
    run([installed / "bertsmith", "run", "small.yaml"], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"small.yaml", *own, ".bertsmith"}
    models = run([installed / "bertsmith", "models"], tmp_path)
    assert "bertsmith-encoder" in models
    assert "bertsmith-classifier" in models
    predicted = run([installed / "bertsmith", "predict", "The inverse of a matrix."], tmp_path)
    assert "numpy" in predicted or "networkx" in predicted
