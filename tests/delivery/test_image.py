"""The image as it is declared: what it copies is there, and it is for what compose and pods say."""

import re
from pathlib import Path

import yaml

from tests.delivery.declared import ENTRYPOINT, INFRA, ROOT, is_command, make_credentials

DOCKERFILE = (INFRA / "Dockerfile").read_text(encoding="utf-8")
LAST_STAGE = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]
# Of an image, of an overlay's image, of the repository where an overlay of others finds ours.
_TAG = re.compile(r"(?:\bbertsmith:|\bnewTag: |\?ref=v)(\d+(?:\.\d+)*)")


def words(instruction: str, text: str = DOCKERFILE) -> list[list[str]]:
    """The words of every such instruction, its continued lines joined, options left out."""
    joined = text.replace("\\\n", " ")
    found = re.findall(rf"^{instruction} (.+)$", joined, flags=re.MULTILINE)
    return [[word for word in each.split() if not word.startswith("--")] for each in found]


def test_what_it_copies_is_there_and_sent_to_the_builder() -> None:
    sources = [
        name
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, flags=re.MULTILINE)
        for name in line.split()[:-1]
        if not name.startswith("--")
    ]
    assert {"bert_core", "pipelines", "flows", "pyproject.toml", "constraints.txt"} <= set(sources)
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if "!" in line}
    for name in sources:
        assert (ROOT / name).exists(), name
        assert name in sent, f"{name} is left out by .dockerignore"
    assert sent == set(sources)


def test_it_runs_as_nobody_special_and_says_whether_it_is_well() -> None:
    assert words("USER", LAST_STAGE) == [["1000:1000"]]
    health = yaml.safe_load(re.findall(r"^\s+CMD (\[.+\])$", LAST_STAGE, flags=re.MULTILINE)[0])
    assert is_command(health)
    assert f'ENTRYPOINT ["{ENTRYPOINT}"]' in LAST_STAGE
    command = yaml.safe_load(re.findall(r"^CMD (\[.+\])$", LAST_STAGE, flags=re.MULTILINE)[0])
    assert is_command(command)


def test_nothing_is_installed_but_what_constraints_pin() -> None:
    installs = re.findall(r"pip install (.+)", DOCKERFILE)
    assert len(installs) == 2
    assert all("--constraint constraints.txt" in each or "--no-deps" in each for each in installs)
    # Of Debian's packages what the entry point calls.
    (install,) = re.findall(r"apt-get install (.+)", DOCKERFILE)
    assert install in LAST_STAGE
    packages = {word for word in install.split() if word.isalpha()}
    assert packages == {"tini"}
    assert "exec tini" in (INFRA / "entrypoint.sh").read_text()
    check = (INFRA / "check-image.sh").read_text()
    assert all(f"inside {name} --version" in check for name in packages)


def test_a_folder_of_passwords_belongs_to_its_user_for_each_that_is_made(tmp_path: Path) -> None:
    make_credentials(tmp_path)
    for part in tmp_path.iterdir():
        assert f"/credentials/{part.name}" in LAST_STAGE


def test_it_is_called_by_the_version_of_the_project_wherever_it_is_named() -> None:
    version = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    files = [ROOT / "docs" / "deploying.md", *(path for path in INFRA.rglob("*") if path.is_file())]
    named = {
        str(path.relative_to(ROOT)): set(_TAG.findall(path.read_text(encoding="utf-8")))
        for path in files
    }
    assert {name: tags for name, tags in named.items() if tags - set(version)} == {}
    assert {name for name, tags in named.items() if tags} >= {
        "docs/deploying.md",
        "infra/Dockerfile",
        "infra/check-image.sh",
        "infra/compose.yaml",
        "infra/compose.gpu.yaml",
        "infra/kubernetes/base/places.yaml",
        "infra/kubernetes/base/ray.yaml",
        "infra/kubernetes/base/worker.yaml",
        "infra/kubernetes/overlays/cpu/kustomization.yaml",
        "infra/kubernetes/overlays/example/kustomization.yaml",
        "infra/kubernetes/overlays/gpu/kustomization.yaml",
    }
