"""`import bert_core as bc` reaches everything, and costs nothing until it is used."""

import json
import subprocess
import sys
from pathlib import Path

import torch

import bert_core as bc

DOCS = Path(__file__).parents[2] / "docs" / "encoder.md"


def fresh(program: str) -> list[str]:
    """What `program` prints as JSON in a new process."""
    output = subprocess.run(
        [sys.executable, "-c", f"import json, sys\n{program}"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return json.loads(output)


def programs() -> list[str]:
    """The programs of the page, in order."""
    parts = DOCS.read_text(encoding="utf-8").split("```python\n")[1:]
    return [part.split("```")[0] for part in parts]


def test_importing_it_brings_neither_torch_nor_tokenizers():
    program = "import bert_core as bc\ndir(bc)\nprint(json.dumps(sorted(sys.modules)))"
    loaded = fresh(program)
    for heavy in ("torch", "tokenizers", "numpy", "safetensors"):
        assert heavy not in loaded


def test_every_name_resolves_and_brings_no_compiler():
    program = """
import bert_core as bc
for name in bc.__all__:
    getattr(bc, name)
print(json.dumps(sorted(sys.modules)))
"""
    loaded = fresh(program)
    assert "torch" in loaded
    for needless in ("torch._dynamo", "torch._inductor", "mlflow", "ray", "transformers"):
        assert needless not in loaded


def test_configuring_and_tokenizing_need_no_torch():
    program = """
import bert_core as bc
bc.encoder_config("tiny", 10), bc.WordPieceTokenizer(list(bc.SPECIAL_TOKENS)), bc.MaskingConfig()
print(json.dumps(sorted(sys.modules)))
"""
    loaded = fresh(program)
    assert "tokenizers" in loaded
    assert "torch" not in loaded


def test_the_first_program_of_the_page_runs(tmp_path, monkeypatch, capsys):
    program = programs()[0]
    assert program.startswith("import bert_core as bc\n")
    assert sum(bool(line) for line in program.splitlines()) <= 10
    assert program.count("import") == 1
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(program, str(DOCS), "exec"), {})
    assert capsys.readouterr().out.splitlines()[-1] == "['good', 'bad']"
    assert (tmp_path / "critic" / "model.safetensors").is_file()


def test_the_program_that_starts_from_any_model_runs(tmp_path):
    config = bc.encoder_config("tiny", 120)
    bc.export_model(tmp_path / "published", bc.PretrainingModel(config))
    (program,) = [program for program in programs() if "load_encoder_into" in program]
    names = {"bc": bc}
    exec(program.replace("path/to/bert-base-uncased", str(tmp_path / "published")), names)
    assert set(names["new"]) == {"task_head.dense.weight", "task_head.dense.bias"}
