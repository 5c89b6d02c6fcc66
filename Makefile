# Everything sets itself up, once: a second `make run` installs and bakes nothing.
#
#   make run [ARGS="--port 8123 …"] [MODEL="FOLDER …"]     make test [ARGS="-k name"]     make check     make clean

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help gpu-check audit chaos kills soak overload fuzz clients run prepare-tests test check lint golden clean system system-for-tests native image test-image up down

PYTHON ?= $(shell command -v python3.11 || command -v python3)
ARGS ?=
VARIANT ?= cpu
SERVICES ?=
DEFAULT_MODEL := .cache/models/SmolLM2-135M-Instruct
MODEL ?= $(DEFAULT_MODEL)

VENV := .venv
BIN := $(VENV)/bin
# The stamps carry the digest of what was installed, so that they are out of date exactly when that changes.
DIGEST := $(shell sha256sum pyproject.toml | cut -c1-16)
RUN_STAMP := $(VENV)/.stamp-run-$(DIGEST)
DEV_STAMP := $(VENV)/.stamp-dev-$(DIGEST)
LOG := $(VENV)/setup.log

# $(call quietly,COMMAND): its output goes to a log that is only shown when it fails.
quietly = { $(1); } > $(LOG) 2>&1 || { status=$$?; cat $(LOG) >&2; exit $$status; }
pip_install = $(BIN)/python -m pip install --disable-pip-version-check --no-input

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

run: system $(RUN_STAMP) native $(DEFAULT_MODEL)/manifest.json ## set everything up and start the box; flags in ARGS
	@exec $(BIN)/breadbox serve $(MODEL) $(ARGS)

prepare-tests: system-for-tests $(DEV_STAMP) native $(DEFAULT_MODEL)/manifest.json clients

test: prepare-tests ## set everything up and run the tests; pytest flags in ARGS
	@$(BIN)/python -m pytest $(ARGS)

check: lint audit test ## lint, types, import contracts, audit and tests: what CI runs

lint: $(DEV_STAMP) ## lint, types and import contracts only
	@echo "checking style, types and imports"
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

audit: $(DEV_STAMP) ## known vulnerabilities in the packages, secrets in the repository
	@echo "looking for known vulnerabilities and for secrets"
	@$(BIN)/python .ci/audit.py

image: | $(VENV)/bin/python ## build the image breadbox:cpu (or VARIANT=cuda); installs a Docker engine where there is none
	@.ci/image/engine .ci/image/build $(VARIANT)

test-image: $(DEV_STAMP) ## build the image and run its tests; pytest flags in ARGS
	@.ci/image/engine .ci/image/build cpu
	@.ci/image/engine $(BIN)/python -m pytest tests/image $(ARGS)

up: $(DEV_STAMP) ## build the image and start the appliance, Prometheus and Grafana in the background
	@.ci/image/engine --keep .ci/image/build $(VARIANT)
	@.ci/image/engine --keep .ci/image/compose up --detach --no-build --wait $(SERVICES)

down: ## stop what `make up` started
	@.ci/image/engine --keep .ci/image/compose down
	@.ci/image/engine --stop

gpu-check: ## check and time every kernel, and whole models, on this machine's GPU; flags in ARGS
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m tests.gpu $(ARGS); else "$(PYTHON)" -m tests.gpu $(ARGS); fi

fuzz: $(DEV_STAMP) ## send random requests to a running box; flags in ARGS (--base-url, --requests, --key, --seed)
	@$(BIN)/python -m tests.e2e.fuzz $(ARGS)

chaos: $(DEV_STAMP) native ## break a box under load for an hour; flags in ARGS (--minutes, --seed, --concurrency, --model)
	@$(BIN)/python -m tests.chaos $(ARGS)

kills: $(DEV_STAMP) native ## kill the engine ten times under 200 requests; flags in ARGS (--requests, --kills, --how, --seed, --model)
	@$(BIN)/python -m tests.chaos.kills $(ARGS)

soak: $(DEV_STAMP) native ## 100,000 short requests, is everything as small as before? flags in ARGS (--requests, --minutes, --tiny)
	@$(BIN)/python -m tests.chaos.soak $(ARGS)

overload: $(DEV_STAMP) native ## ten times what a box can do, for a minute; flags in ARGS (--seconds)
	@$(BIN)/python -m tests.chaos.overload $(ARGS)

golden: $(DEV_STAMP) ## write llama.cpp's token ids into tests/unit/golden again (builds llama.cpp: minutes)
	@echo "installing llama.cpp's tokenizer" && $(call quietly,$(pip_install) -e '.[golden]')
	@$(BIN)/python -m tests.unit.golden.make_llamacpp_ids

clean: ## remove everything that the other targets made
	@rm -rf .venv .cache build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

system:
	@.ci/system-packages

clients:
	@PYTHON="$(PYTHON)" tests/e2e/clients/setup.sh

system-for-tests:
	@.ci/system-packages tests

$(VENV)/bin/python: | system
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
	  || { echo "Python 3.11 is needed; PYTHON=… names one ($(PYTHON) is none)" >&2; exit 1; }
	@echo "making a virtual environment in $(VENV)"
	@"$(PYTHON)" -m venv $(VENV)

$(RUN_STAMP): | $(VENV)/bin/python
	@echo "installing the Python packages (torch is the big one; a few minutes on a slow line)"
	@$(call quietly,$(pip_install) -e '.[engine]')
	@rm -f $(VENV)/.stamp-* && touch $@

$(DEV_STAMP): $(RUN_STAMP)
	@echo "installing the packages for tests and checks"
	@$(call quietly,$(pip_install) -e '.[engine$(comma)dev]')
	@touch $@

comma := ,

native: $(RUN_STAMP)
	@ls engine/kernels/native/build/*.so > /dev/null 2>&1 || echo "compiling the CPU kernels"
	@$(BIN)/python -m engine.kernels.native.build > $(LOG) 2>&1 \
	  || { tail -n 3 $(LOG); echo "warning: without the compiled CPU kernels the engine is several times slower"; } >&2

$(DEFAULT_MODEL)/manifest.json: | $(RUN_STAMP)
	@echo "baking the default model into $(DEFAULT_MODEL)"
	@$(BIN)/breadbox bake default --out $(DEFAULT_MODEL) --quantization "$$([ -n "$$(ls engine/kernels/native/build/*.so 2>/dev/null)" ] && echo int4_a8 || echo none)"
