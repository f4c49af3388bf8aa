"""`bertsmith deploy --git`: a worker clones what is named, and runs that."""

import shutil
import subprocess
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client

from flows.services.deployments import Source
from tests.delivery.taken_runs import COMMAND, environment, taken_run

pytestmark = pytest.mark.slow

FLOW = """
from pathlib import Path
from prefect import flow

@flow
def says(where: str) -> None:
    Path(where).write_text({word!r})
"""


def test_a_run_takes_the_code_of_the_reference_before_what_is_installed(
    prefect_api: str, tmp_path: Path
) -> None:
    if shutil.which("git") is None:
        pytest.skip("git clones the code, and there is none here")
    repository, installed, elsewhere = (tmp_path / name for name in ("a", "b", "c"))
    for folder in (repository, installed, elsewhere):
        folder.mkdir()
    (installed / "speaking.py").write_text(FLOW.format(word="what is installed"))
    name = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")

    def git(*words: str) -> None:
        subprocess.run(["git", *name, *words], cwd=repository, check=True, capture_output=True)

    git("init")
    for word, tag in (("what was tagged", "v0.1.0"), ("what came later", "later")):
        (repository / "speaking.py").write_text(FLOW.format(word=word))
        git("add", ".")
        git("commit", "--message", word)
        git("tag", tag)
    run = taken_run(
        "speaking.says", Source.git(f"file://{repository}", "v0.1.0"), where=str(tmp_path / "said")
    )
    done = subprocess.run(
        COMMAND, cwd=elsewhere, env=environment(run, installed),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run).state
    assert state is not None
    assert state.is_completed(), done.stdout + done.stderr
    assert (tmp_path / "said").read_text() == "what was tagged"
