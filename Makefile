# Everything below needs Python 3.11 or later, Node 20 or later (for the official suite and the
# benchmark's reference server) and the package registries. Nothing else.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip
SUITE  := tests/conformance
SHAPES := tests/shapes
EXAMPLES := examples
COMPILED := build/compiled
# A C compiler alone is not enough: the headers of this Python must be there, too.
PYTHON_H := $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
WITH_COMPILED := $(if $(shell command -v cc),$(if $(wildcard $(PYTHON_H)),compiled))
UI     := tests/ui
UV_PIN := uv==0.13.7

# What changes .venv or build/ runs in a make of its own that holds a lock: two makes at once take
# turns, and the second sees the stamps that the first has left.
SUBMAKE      := $(MAKE) --no-print-directory --silent
LOCKED       := $(PYTHON) bin/with-lock $(VENV)/.lock $(SUBMAKE)
COMPILE_LOCK := $(PYTHON) bin/with-lock $(VENV)/.compile-lock $(SUBMAKE)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export NO_MKDOCS_2_WARNING := 1
# The tests start hundreds of processes, and with this each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup installed runnable suites first-build compiled wheels run check static classes browser strace test conformance soak bench docs screenshots docs-serve lock clean \
        dev dev-ui dev-down integration-test integration-test-sessions chart docker

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-26s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- setup: each step leaves a stamp, so a second run does nothing ---
#
# .created -> .runnable (the server, seconds) -> .compiler (mypy for `make compiled`)
#          -> .locked -> .installed (everything that the tests need, which includes both)

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headrace needs Python 3.11 or later; set PYTHON=/path/to/one")'
	@echo "Creating .venv with $$($(PYTHON) --version)."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# Not compiled to bytecode here: Python does that for what it imports.
$(VENV)/.runnable: requirements/run.txt pyproject.toml bin/headrace $(VENV)/.created
	@echo "Installing what the server needs into .venv (requirements/run.txt, a few seconds)."
	@$(PIP) install --quiet --no-compile --require-hashes -r requirements/run.txt
	@$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@ln -sf ../../bin/headrace $(BIN)/headrace
	@touch $@

$(VENV)/.compiler: requirements/compile.txt $(VENV)/.runnable
	@echo "Installing mypy into .venv (requirements/compile.txt)."
	$(PIP) install --quiet --require-hashes -r requirements/compile.txt
	@touch $@

$(VENV)/.locked: requirements/dev.txt $(VENV)/.created
	@echo "Installing what the tests need into .venv (requirements/dev.txt, 1.9 GB: some minutes)."
	$(PIP) install --quiet --require-hashes -r requirements/dev.txt
	@touch $@

$(VENV)/.installed: pyproject.toml bin/headrace $(VENV)/.locked
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	ln -sf ../../bin/headrace $(BIN)/headrace
	@touch $(VENV)/.runnable $(VENV)/.compiler $@

$(SUITE)/node_modules/.installed: $(SUITE)/package.json $(SUITE)/package-lock.json
	@echo "Installing the Node packages of $(SUITE)."
	cd $(SUITE) && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

# Built from a copy: extension modules beside the sources would hide every later edit. The stamp
# carries the time of the copy, so that an edit during the build counts as newer. What is replaced
# stays until the next build: a server that runs from it may still import some of it.
$(COMPILED)/.built: pyproject.toml requirements/compile.txt $(shell find src/headrace -name '*.py') | $(VENV)/.compiler
	@echo "Compiling the path of an append: about a minute."
	rm -rf build/next && mkdir -p build/next/source && touch build/next/.began
	cp -r pyproject.toml README.md LICENSE src build/next/source
	cd build/next/source && HATCH_BUILD_HOOK_ENABLE_MYPYC=1 ../../../$(PIP) wheel --quiet --no-deps \
	    --no-build-isolation --wheel-dir ../wheel .
	$(PIP) install --quiet --no-deps --target build/next/compiled build/next/wheel/*.whl
	touch -r build/next/.began build/next/compiled/.built
	rm -rf build/previous build/wheel
	if [ -e $(COMPILED) ]; then mv $(COMPILED) build/previous; fi
	mv build/next/compiled $(COMPILED) && mv build/next/wheel build/wheel && rm -rf build/next

$(UI)/node_modules/.installed: $(UI)/package.json $(UI)/package-lock.json
	@echo "Installing the Node packages of $(UI)."
	cd $(UI) && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

# The machine's own, or Debian's unpacked beside the tests; says so where there is neither.
browser: setup
	@$(BIN)/python -m tests.ui.chromium

strace: setup
	@$(BIN)/python -m tests.durability.strace

$(SHAPES)/node_modules/.installed: $(SHAPES)/package.json $(SHAPES)/package-lock.json
	@echo "Installing the Node packages of $(SHAPES)."
	cd $(SHAPES) && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

$(EXAMPLES)/node_modules/.installed: $(EXAMPLES)/package.json $(EXAMPLES)/package-lock.json
	@echo "Installing the Node packages of $(EXAMPLES)."
	cd $(EXAMPLES) && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

installed:
	+@$(LOCKED) $(VENV)/.installed

runnable:
	+@$(LOCKED) $(VENV)/.runnable

suites: installed
	+@$(LOCKED) $(SUITE)/node_modules/.installed $(UI)/node_modules/.installed $(SHAPES)/node_modules/.installed $(EXAMPLES)/node_modules/.installed

setup: installed first-build ## create .venv from the lock; leaves .venv/bin/headrace

# Once, where there is a C compiler. After an edit the command runs from the sources, until the
# next `make compiled`.
first-build: installed
	@$(if $(WITH_COMPILED),test -e $(COMPILED)/.built || $(SUBMAKE) compiled \
	    || echo "The compiled build failed: headrace runs from its Python sources (slower).",true)

compiled: ## compile the hot path to C extensions in build/ (needs a C compiler)
	+@$(LOCKED) $(VENV)/.compiler
	+@$(COMPILE_LOCK) $(COMPILED)/.built

wheels: ## build a pure wheel and a compiled one for each Python found here, and try each; writes dist
	$(PYTHON) tools/build_wheels.py

# Installs only what serves, and compiles meanwhile; `make setup` completes the same .venv.
run: runnable ## serve on http://localhost:4437, with durable storage in ./data
	@if [ -z "$(WITH_COMPILED)" ]; then \
	    echo "Running from the Python sources: there is no C compiler (with the headers of this Python) to build the faster version."; \
	elif [ ! -e $(COMPILED)/.built ]; then \
	    echo "Running from the Python sources. The faster version compiles in the background and serves from the next start on (log: build/compile.log)."; \
	    $(PYTHON) bin/in-background build/compile.log $(SUBMAKE) compiled; \
	elif [ -n "$$(find src/headrace -name '*.py' -newer $(COMPILED)/.built -print -quit)" ]; then \
	    echo "Running from the Python sources, which are newer than the compiled build: make compiled brings it up to date."; \
	fi; \
	DS_STORAGE__MODE=file-durable DS_STORAGE__DATA_DIR=data exec $(BIN)/headrace serve

# --- checks ---

# Java machines that start Spark are a large part of what the Spark tests cost.
classes: setup
	@$(BIN)/headrace pipeline prepare || echo "Without an archive of its classes Spark starts slower."

static: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

check: static ## run lint, types, layers and the fast tests
	$(BIN)/python -m pytest -m "not slow"

# Three at a time on two cores: tests wait as much as they compute.
test: setup suites $(WITH_COMPILED) browser strace ## run everything: check, the slow tests, the official suite in every mode
	@$(MAKE) --no-print-directory --jobs=2 static classes
	$(BIN)/python -m pytest --numprocesses=3 --dist=loadgroup

conformance: setup ## run only the official suite, in every storage mode and over ASGI
	+@$(LOCKED) $(SUITE)/node_modules/.installed
	$(BIN)/python -m pytest $(SUITE) -rA

SOAK_MINUTES ?= 60

soak: setup ## run the durability and the hostile tests for an hour each, or SOAK_MINUTES=, and the Spark kill tests; writes bench/results
	$(BIN)/python -m tests.durability.soak --minutes $(SOAK_MINUTES)
	$(BIN)/python -m tests.hostile.soak --minutes $(SOAK_MINUTES)
	$(BIN)/python -m tests.spark.soak

bench: setup $(WITH_COMPILED) ## compare with the Node reference server; writes bench/results
	$(BIN)/python -m bench
	$(BIN)/python -m bench durable
	$(BIN)/python -m bench reference
	$(BIN)/python -m bench pipelines
	$(if $(WITH_COMPILED),$(BIN)/python -m bench --pure --only 'append-c64-*' 'producer-*' 'crowd-*')

# --- the stack: docs/stack.md ---

dev: setup ## start the whole stack: server, Envoy, Postgres, sync, heartbeat, database page, stream browser
	$(BIN)/headrace stack up --profile dev

dev-ui: setup ## print the address of the stream browser of `make dev`
	$(BIN)/headrace stack ui

dev-down: setup ## stop what `make dev` started
	$(BIN)/headrace stack down

integration-test: setup ## test the stack and authentication through Envoy
	$(BIN)/python -m pytest tests/stack -m "not sync"

integration-test-sessions: setup ## test sessions and both directions of the Postgres sync
	$(BIN)/python -m pytest tests/stack -m sync

chart: setup ## render the Helm chart with every file of deploy/helm/cases and validate it (needs helm and kubeconform)
	$(BIN)/python -m tools.render_chart

docker: ## build the server's container image (needs a container engine)
	docker build --target server -t headrace .

# --- documentation ---

docs: setup ## build the documentation site into site/
	$(BIN)/mkdocs build --strict --quiet

screenshots: setup browser ## retake the screenshots of docs/browser.md
	UI_SCREENSHOTS=docs/images $(BIN)/python -m pytest $(UI)/test_screenshots.py

docs-serve: setup ## serve the documentation with live reload
	$(BIN)/mkdocs serve

# --- locks: `make lock UPGRADE=--upgrade` moves every pin, without it only what must move ---

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
           --no-header --no-annotate --no-emit-index-url $(UPGRADE)

lock: runnable ## resolve pyproject.toml and package.json again
	$(PIP) install --quiet $(UV_PIN)
	$(COMPILE) -o requirements/run.txt pyproject.toml requirements/build.in
	$(COMPILE) -o requirements/dev.txt -c requirements/run.txt --extra dev --extra otel --extra shapes --extra spark --extra stack pyproject.toml requirements/build.in
	$(COMPILE) -o requirements/compile.txt -c requirements/run.txt -c requirements/dev.txt requirements/compile.in
	cd $(SUITE) && npm install --package-lock-only --no-audit --no-fund --loglevel=error && node trim-lock.mjs
	cd $(UI) && npm install --package-lock-only --no-audit --no-fund --loglevel=error && node ../conformance/trim-lock.mjs
	cd $(SHAPES) && npm install --package-lock-only --no-audit --no-fund --loglevel=error && node ../conformance/trim-lock.mjs
	cd $(EXAMPLES) && npm install --package-lock-only --no-audit --no-fund --loglevel=error && node ../tests/conformance/trim-lock.mjs

clean: ## remove everything that can be rebuilt
	rm -rf $(VENV) $(SUITE)/node_modules $(UI)/node_modules $(UI)/.chromium tests/durability/.strace $(SHAPES)/node_modules $(EXAMPLES)/node_modules bench/reference/node_modules build site
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
