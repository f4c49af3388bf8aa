"""What the sources import is declared, and what is private in another library is bounded."""

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipelines.registry.package import declared_requirements
from tests.delivery.declared import ROOT

# Which extras an installation has beside what every one has, by what it runs.
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "bert_core": ("onnx",),
    "pipelines": ("documents",),
    "flows": (),
    "tests": ("test", "onnx"),
    "benchmarks": ("test", "onnx", "benchmarks"),
    "docs": ("docs",),
}
SHIPPED = ("bert_core", "pipelines", "flows")
# Lies in the folders of exported models, and is imported where transformers opens them.
SENT_ALONG = ("modeling_mean_bert.py",)
OURS = {*EXTRAS, *(path.stem for path in (ROOT / "benchmarks").rglob("*.py"))}
# fsspec imports s3fs for addresses of S3, whose errors are known by name, and a reader of .zst.
NAMED_BY_OTHERS = {"aiohttp", "backports-zstd", "botocore", "s3fs"}

_SERVER = "MLflow behind a password: pipelines/tracking/guard.py"
# What no library promises to keep, and which part of ours stands on it.
PRIVATE = {
    "ray._private.services.ConsolePopen": (
        "a local Ray out of reach of signals to our group: pipelines/cluster.py"
    ),
    "mlflow.server.fastapi_app.app": _SERVER,
    "torch._foreach_mul_": "LAMB: bert_core/training/optimization.py",
    "torch._foreach_norm": "LAMB: bert_core/training/optimization.py",
    "torch._foreach_sub_": "Muon: bert_core/training/optimization.py",
    "torch.cpu._is_amx_tile_supported": "bf16 on a CPU: bert_core/backends/context.py",
    "torch.cpu._is_avx512_bf16_supported": "bf16 on a CPU: bert_core/backends/context.py",
    "torch.ops.aten._softmax_backward_data": (
        "attention on CPUs: bert_core/backends/cpu/attention.py"
    ),
    "torch.Tensor._version": "packed weights: bert_core/backends/cpu/layers.py",
    "torch.ops.mkldnn._is_mkldnn_bf16_supported": "bert_core/backends/cpu/layers.py",
    "torch.ops.mkldnn._linear_pointwise": "bert_core/backends/cpu/layers.py",
    "torch.ops.mkldnn._reorder_linear_weight": "bert_core/backends/cpu/layers.py",
}
_OF_NAMED_TUPLES = {"_asdict", "_fields", "_replace"}  # their public names
# Without an underscore, and yet in no documentation of MLflow's.
UNDOCUMENTED = ("mlflow.server", "mlflow.system_metrics")


@cache
def trees(package: str) -> dict[Path, ast.Module]:
    files = sorted(path for path in (ROOT / package).rglob("*.py") if path.name not in SENT_ALONG)
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}


def imported(tree: ast.Module) -> Iterator[str]:
    """The full name of everything that is imported anywhere in a file, functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def libraries(package: str) -> set[str]:
    names = {name.partition(".")[0] for tree in trees(package).values() for name in imported(tree)}
    return names - OURS - sys.stdlib_module_names


@cache
def declared(*extras: str) -> dict[str, Requirement]:
    """What pyproject.toml asks for, for everyone and by these extras: by the distribution."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in extras for line in optional[extra])]
    return {canonicalize_name(each.name): each for each in map(Requirement, lines)}


_bringing = cache(packages_distributions)  # reads what is installed, which takes a while


def distributions(library: str) -> set[str]:
    """Those that bring it."""
    return {canonicalize_name(name) for name in _bringing().get(library, [library])}


@pytest.mark.parametrize("package", EXTRAS)
def test_what_is_imported_is_declared(package: str) -> None:
    known = set(declared(*EXTRAS[package]))
    missing = {name for name in libraries(package) if not distributions(name) & known}
    assert not missing, f"{package} imports what pyproject.toml does not declare for it: {missing}"


def test_what_is_declared_for_everyone_is_imported() -> None:
    ours = {name for package in SHIPPED for name in libraries(package)}
    brought = {name for library in ours for name in distributions(library)}
    assert {*declared()} - brought - NAMED_BY_OTHERS == {"fastapi"}  # bounded for Prefect's sake


def test_every_requirement_is_pinned_within_its_bounds() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {
        canonicalize_name(name): pin for name, _, pin in (line.partition("==") for line in lines)
    }
    extras = ("test", "docs", "documents", "onnx", "servers", "serve", "benchmarks", "cluster")
    for name, requirement in declared(*extras).items():
        assert name == "bertsmith" or requirement.specifier.contains(pins[name]), requirement
    tokenizers = declared()["tokenizers"].specifier  # the candidate of 1.0 cannot train
    assert not tokenizers.contains("1.0rc1", prereleases=True)


def test_a_registered_model_declares_what_its_code_imports() -> None:
    named = {canonicalize_name(line.partition("==")[0]) for line in declared_requirements()}
    named |= {*declared("onnx")} - {*declared()}  # what writes files, which no such model does
    assert {name for name in libraries("bert_core") if not distributions(name) & named} == set()


def underscored(words: Iterable[str]) -> set[str]:
    return {word for word in words if word.startswith("_") and not word.startswith("__")}


def defined(tree: ast.Module) -> set[str]:
    """Underscored names that the file makes: functions, classes, variables and attributes."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return underscored(found)


def used(tree: ast.Module) -> set[str]:
    """Underscored names that the file imports or asks of something."""
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return underscored(attributes | {word for name in imported(tree) for word in name.split(".")})


def test_every_private_name_of_another_library_is_known() -> None:
    sources = [tree for package in SHIPPED for tree in trees(package).values()]
    ours = {name for tree in sources for name in defined(tree)}
    theirs = {name for tree in sources for name in used(tree)} - ours - _OF_NAMED_TUPLES
    assert theirs == underscored(word for name in PRIVATE for word in name.split("."))
    undocumented = {
        name for tree in sources for name in imported(tree) if name.startswith(UNDOCUMENTED)
    }
    assert undocumented == {name for name in PRIVATE if name.startswith(UNDOCUMENTED)}


@pytest.mark.parametrize("library", sorted({name.partition(".")[0] for name in PRIVATE}))
def test_a_library_with_private_names_is_bounded(library: str) -> None:
    major, minor = map(int, version(library).split(".")[:2])
    bounds = declared()[library].specifier
    assert bounds.contains(version(library)), f"{library} {version(library)}: install again"
    assert not bounds.contains(f"{major}.{minor + 1}"), f"{library} must end at a minor version"
