# Everything below needs Python 3.11 or later, Node 20 or later (for the official suite and the
# benchmark's reference server) and the package registries. Nothing else.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip
SUITE  := tests/conformance
SHAPES := tests/shapes
COMPILED := build/compiled
# A C compiler alone is not enough: the headers of this Python must be there, too.
PYTHON_H := $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
WITH_COMPILED := $(if $(shell command -v cc),$(if $(wildcard $(PYTHON_H)),compiled))
UI     := tests/ui
UV_PIN := uv==0.13.7

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export NO_MKDOCS_2_WARNING := 1
# The tests start hundreds of processes, and with this each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup first-build compiled run check static classes browser strace test conformance soak bench docs screenshots docs-serve lock clean \
        dev dev-ui dev-down integration-test integration-test-sessions docker

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-26s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- setup: each step leaves a stamp, so a second run does nothing ---

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headrace needs Python 3.11 or later; set PYTHON=/path/to/one")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.locked: requirements/dev.txt $(VENV)/.created
	$(PIP) install --quiet --require-hashes -r requirements/dev.txt
	@touch $@

$(VENV)/.installed: pyproject.toml bin/headrace $(VENV)/.locked
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	ln -sf ../../bin/headrace $(BIN)/headrace
	@touch $@

$(SUITE)/node_modules/.installed: $(SUITE)/package.json $(SUITE)/package-lock.json
	cd $(SUITE) && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

# Built from a copy: extension modules beside the sources would hide every later edit.
$(COMPILED)/.built: pyproject.toml $(shell find src/headrace -name '*.py') $(VENV)/.installed
	@echo "Compiling the path of an append: about a minute."
	rm -rf build && mkdir -p build/source
	cp -r pyproject.toml README.md LICENSE src build/source
	cd build/source && HATCH_BUILD_HOOK_ENABLE_MYPYC=1 ../../$(PIP) wheel --quiet --no-deps \
	    --no-build-isolation --wheel-dir ../wheel .
	$(PIP) install --quiet --no-deps --target $(COMPILED) build/wheel/*.whl
	@touch $@

$(UI)/node_modules/.installed: $(UI)/package.json $(UI)/package-lock.json
	cd $(UI) && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

# The machine's own, or Debian's unpacked beside the tests; says so where there is neither.
browser: setup
	@$(BIN)/python -m tests.ui.chromium

strace: setup
	@$(BIN)/python -m tests.durability.strace

$(SHAPES)/node_modules/.installed: $(SHAPES)/package.json $(SHAPES)/package-lock.json
	cd $(SHAPES) && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

setup: $(VENV)/.installed first-build ## create .venv from the lock; leaves .venv/bin/headrace

# Once, where there is a C compiler. After an edit the command runs from the sources, until the
# next `make compiled`.
first-build: $(VENV)/.installed
	@$(if $(WITH_COMPILED),test -e $(COMPILED)/.built || $(MAKE) --no-print-directory compiled \
	    || echo "The compiled build failed: headrace runs from its Python sources (slower).",true)

compiled: $(COMPILED)/.built ## the hot path as C, into build/ (needs a C compiler)

run: setup ## serve on http://localhost:4437, durably, under ./data
	DS_STORAGE__MODE=file-durable DS_STORAGE__DATA_DIR=data $(BIN)/headrace serve

# --- checks ---

# Java machines that start Spark are a large part of what the Spark tests cost.
classes: setup
	@$(BIN)/headrace pipeline prepare || echo "Without an archive of its classes Spark starts slower."

static: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

check: static ## lint, types, layers, fast tests
	$(BIN)/python -m pytest -m "not slow"

# Three at a time on two cores: tests wait as much as they compute.
test: setup $(SUITE)/node_modules/.installed $(UI)/node_modules/.installed $(SHAPES)/node_modules/.installed $(WITH_COMPILED) browser strace ## everything: check, the slow tests, the official suite in every mode
	@$(MAKE) --no-print-directory --jobs=2 static classes
	$(BIN)/python -m pytest --numprocesses=3 --dist=loadgroup

conformance: setup $(SUITE)/node_modules/.installed ## only the official suite, in every storage mode and over ASGI
	$(BIN)/python -m pytest $(SUITE) -rA

SOAK_MINUTES ?= 60

soak: setup ## the long tier: durability for an hour, or SOAK_MINUTES=, and kills under Spark; writes bench/results
	$(BIN)/python -m tests.durability.soak --minutes $(SOAK_MINUTES)
	$(BIN)/python -m tests.spark.soak

bench: setup $(WITH_COMPILED) ## compare with the Node reference server; writes bench/results
	$(BIN)/python -m bench
	$(BIN)/python -m bench durable
	$(BIN)/python -m bench reference
	$(BIN)/python -m bench pipelines
	$(if $(WITH_COMPILED),$(BIN)/python -m bench --pure --only 'append-c64-*' 'producer-*' 'crowd-*')

# --- the stack: docs/stack.md ---

dev: setup ## everything: server, Envoy, Postgres, sync, heartbeat, database page, stream browser
	$(BIN)/headrace stack up --profile dev

dev-ui: setup ## where the stream browser of `make dev` is
	$(BIN)/headrace stack ui

dev-down: setup ## end what `make dev` started
	$(BIN)/headrace stack down

integration-test: setup ## the stack and authentication through Envoy
	$(BIN)/python -m pytest tests/stack -m "not sync"

integration-test-sessions: setup ## sessions and both directions of the Postgres sync
	$(BIN)/python -m pytest tests/stack -m sync

docker: ## the server's container image (needs a container engine)
	docker build --target server -t headrace .

# --- documentation ---

docs: setup ## build the documentation site into site/
	$(BIN)/mkdocs build --strict --quiet

screenshots: setup browser ## take the pictures of docs/browser.md again
	UI_SCREENSHOTS=docs/images $(BIN)/python -m pytest $(UI)/test_screenshots.py

docs-serve: setup ## serve the documentation with live reload
	$(BIN)/mkdocs serve

# --- locks: `make lock UPGRADE=--upgrade` moves every pin, without it only what must move ---

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
           --no-header --no-annotate --no-emit-index-url $(UPGRADE)

lock: $(VENV)/.created ## resolve pyproject.toml and package.json again
	$(PIP) install --quiet $(UV_PIN)
	$(COMPILE) -o requirements/run.txt pyproject.toml requirements/build.in
	$(COMPILE) -o requirements/dev.txt -c requirements/run.txt --extra dev --extra spark --extra stack pyproject.toml requirements/build.in
	cd $(SUITE) && npm install --package-lock-only --no-audit --no-fund --loglevel=error && node trim-lock.mjs
	cd $(UI) && npm install --package-lock-only --no-audit --no-fund --loglevel=error && node ../conformance/trim-lock.mjs
	cd $(SHAPES) && npm install --package-lock-only --no-audit --no-fund --loglevel=error && node ../conformance/trim-lock.mjs

clean: ## remove everything that can be made again
	rm -rf $(VENV) $(SUITE)/node_modules $(UI)/node_modules $(UI)/.chromium tests/durability/.strace $(SHAPES)/node_modules bench/reference/node_modules build site
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
