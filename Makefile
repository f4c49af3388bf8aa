# Bertsmith: `make run` makes a BERT, `make test` checks everything.

PYTHON ?= python3
INSTALLED := .venv/installed

.PHONY: help run test test-slow test-platform test-gpu bench-gpu lint up down clean

help:
	@echo "make run        raw text to a registered, fine-tuned BERT: the demo recipe"
	@echo "make test       lint, import contracts, types and the quick tests"
	@echo "make test-slow  the long tests: kills, servers, whole runs"
	@echo "make test-platform  a whole platform of real servers, each part of which fails once"
	@echo "make test-gpu   the tests marked gpu, and parity on the card; installs nothing where PYTHON has torch"
	@echo "make bench-gpu  pretraining steps on the card against the usual stack; likewise"
	@echo "make up / down  start and stop the Prefect and MLflow servers and a worker"
	@echo "make clean      remove the environment and everything that runs made here"

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' \
		|| { echo "Bertsmith needs Python 3.11 or newer; name one with make PYTHON=..."; exit 2; }
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	@touch $(INSTALLED)

run: $(INSTALLED)
	@.venv/bin/bertsmith run demo

test: lint
	.venv/bin/python -m pytest -q -m "not slow and not platform"

test-slow: $(INSTALLED)
	.venv/bin/python -m pytest -q -m "slow and not platform"

# Servers of Debian's packages (postgresql, ceph-mon, ceph-osd, radosgw, …): what is missing is said.
test-platform: $(INSTALLED)
	.venv/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[servers]'
	.venv/bin/python -m pytest -q -m platform tests/platform

# A machine with a GPU brings its own torch: what PYTHON has is used as it is.
# Looked up once, where a target needs it: the first use puts what was found in its own place.
GPU_PYTHON = $(eval GPU_PYTHON := $(shell $(PYTHON) -c 'import torch, transformers, pytest' \
	2>/dev/null && echo $(PYTHON) || echo .venv/bin/python))$(GPU_PYTHON)

test-gpu:
	@case '$(GPU_PYTHON)' in .venv/*) $(MAKE) $(INSTALLED) ;; esac
	$(GPU_PYTHON) benchmarks/gpu_tests.py

bench-gpu:
	@case '$(GPU_PYTHON)' in .venv/*) $(MAKE) $(INSTALLED) ;; esac
	$(GPU_PYTHON) benchmarks/gpu.py

lint: $(INSTALLED)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports
	.venv/bin/mypy

up: $(INSTALLED)
	@.venv/bin/bertsmith up

down: $(INSTALLED)
	@.venv/bin/bertsmith down

clean:
	rm -rf .venv .bertsmith build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
