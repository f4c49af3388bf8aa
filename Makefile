# Bertsmith: `make run` makes a BERT, `make test` checks everything.

PYTHON ?= python3
INSTALLED := .venv/installed

.PHONY: help install run test quick test-slow test-gpu bench-gpu docs lint style types up down clean
.PHONY: dist notices sbom audit image-check

help:
	@echo "make install    into .venv, which every other command does first"
	@echo "make run        raw text to a registered, fine-tuned BERT: the demo recipe"
	@echo "make test       lint, import contracts, types and the quick tests"
	@echo "make test-slow  the long tests: kills, servers, whole runs"
	@echo "make test-gpu   the tests marked gpu, and parity on the card; uses PYTHON's own torch if it has one"
	@echo "make bench-gpu  pretraining steps on the card against the usual stack; the same"
	@echo "make docs       the documentation as a site, in build/docs; EXECUTE=off runs no notebook"
	@echo "make up / down  start and stop the Prefect and MLflow servers and a worker"
	@echo "make dist       the sdist and the wheel, in dist/"
	@echo "make notices    the licences of the dependencies: THIRD-PARTY-NOTICES.md"
	@echo "make sbom       a software bill of materials, in dist/"
	@echo "make audit      known vulnerabilities of the pinned versions; needs the network"
	@echo "make image-check  build and test the image without a container engine (Debian, root)"
	@echo "make clean      remove the environment and the results of runs in this folder"

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' \
		|| { echo "Bertsmith needs Python 3.11 or newer; name one with make PYTHON=..."; exit 2; }
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	@touch $(INSTALLED)

install: $(INSTALLED)

run: $(INSTALLED)
	@.venv/bin/bertsmith run demo

# Two processes share the quick tests, and mypy runs at the same time.
test: style
	@$(MAKE) --no-print-directory --jobs=2 types quick

quick: $(INSTALLED)
	.venv/bin/python -m pytest -q -n 2 -m "not slow"

test-slow: $(INSTALLED)
	.venv/bin/python -m pytest -q -n 2 --no-loadscope-reorder -m slow

# A machine with a GPU has its own torch, which is used if PYTHON has it. The look-up happens once, on
# first use.
GPU_PYTHON = $(eval GPU_PYTHON := $(shell $(PYTHON) -c 'import torch, transformers, pytest' \
	2>/dev/null && echo $(PYTHON) || echo .venv/bin/python))$(GPU_PYTHON)

test-gpu:
	@case '$(GPU_PYTHON)' in .venv/*) $(MAKE) $(INSTALLED) ;; esac
	$(GPU_PYTHON) benchmarks/gpu_tests.py

bench-gpu:
	@case '$(GPU_PYTHON)' in .venv/*) $(MAKE) $(INSTALLED) ;; esac
	$(GPU_PYTHON) benchmarks/gpu.py

# A notebook runs when its code has changed; EXECUTE=off runs none.
EXECUTE := cache

docs: $(INSTALLED)
	.venv/bin/sphinx-build --fail-on-warning --keep-going --quiet \
		-D nb_execution_mode=$(EXECUTE) docs build/docs
	@echo "build/docs/index.html"

lint: style types

style: $(INSTALLED)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports

types: $(INSTALLED)
	.venv/bin/mypy

up: $(INSTALLED)
	@.venv/bin/bertsmith up

down: $(INSTALLED)
	@.venv/bin/bertsmith down

# An installation without anything for tests or releases, of which notices and bill of materials are
# made. The tools that inspect it are installed elsewhere.
SHIPPED := .release/shipped/complete
TOOLS := .release/tools/complete

$(SHIPPED): pyproject.toml constraints.txt
	rm -rf .release/shipped
	$(PYTHON) -m venv .release/shipped
	.release/shipped/bin/python -m pip install --quiet --constraint constraints.txt '.[cluster]'
	@touch $(SHIPPED)

$(TOOLS): pyproject.toml
	rm -rf .release/tools
	$(PYTHON) -m venv .release/tools
	.release/tools/bin/python -m pip install --quiet build cyclonedx-bom pip-audit pip-licenses
	@touch $(TOOLS)

dist: $(TOOLS)
	.release/tools/bin/python -m build --outdir dist

notices: $(SHIPPED) $(TOOLS)
	.release/tools/bin/pip-licenses --python .release/shipped/bin/python --from=mixed \
		--order=name --with-urls --format=markdown --ignore-packages bertsmith pip setuptools \
		> .release/notices.md
	{ printf '# Third-party notices\n\nWhat an installation with servers and clusters brings along, as its packages declare it (`make notices`). None of it is part of the wheel; the image contains it, each package with the text of its licence in its `dist-info`.\n\n'; \
		cat .release/notices.md; } > THIRD-PARTY-NOTICES.md

sbom: $(SHIPPED) $(TOOLS)
	mkdir -p dist
	.release/tools/bin/cyclonedx-py environment .release/shipped/bin/python \
		--pyproject pyproject.toml --output-reproducible --output-format JSON \
		--output-file dist/bertsmith.cdx.json

audit: $(TOOLS)
	.release/tools/bin/pip-audit --strict --disable-pip --no-deps --requirement constraints.txt

image-check:
	infra/check-image.sh

clean:
	rm -rf .release dist .venv .bertsmith build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
