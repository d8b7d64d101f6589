# Everything is set up in $(VENV) on first use, and again when one of the files behind PINS changes.
#   EXTRAS    what make serve installs beside the base    make serve EXTRAS=torch    (EXTRAS= for none)
#   PYTHON    the interpreter to start from         make serve PYTHON=python3.12
#   ARGS      passed on to the command of a verb    make serve ARGS="--slots 4"
#   PIP_ARGS  passed on to pip                      see docs/install.md
#   WORKERS   processes that share the tests        make test WORKERS=0 (in one, without pytest-xdist)

VENV ?= .venv
ARGS ?=
AUDIO ?=
AGENT ?=
BENCH ?= server_capacity
PIP_ARGS ?=
WORKERS ?= 2
TIER ?=
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# torch with an NVIDIA GPU, mlx on Apple silicon; elsewhere the base runs the built-in models.
NVIDIA_GPU ?= /dev/nvidia0
GPU := $(wildcard $(NVIDIA_GPU))$(shell nvidia-smi -L 2>/dev/null)
MACHINE := $(shell uname -s)-$(shell uname -m)
FITTING := $(if $(filter Darwin-arm64,$(MACHINE)),mlx,$(if $(GPU),torch))
EXTRAS ?= $(FITTING)
BIN := $(VENV)/bin
PINS := $(shell cat pyproject.toml constraints.txt Makefile | cksum | cut -d ' ' -f 1)
SERVE_READY := $(VENV)/.serve-$(EXTRAS)-$(PINS)
DEV_READY := $(VENV)/.dev-$(PINS)
DOCS_READY := $(VENV)/.docs-$(PINS)
WEB_READY := $(VENV)/.web-$(shell cat package.json package-lock.json 2>/dev/null | cksum | cut -d ' ' -f 1)
# moshi asks for older torch, numpy and aiohttp than it needs: it goes in last, without its dependencies.
# So does autobahntestsuite, whose client is Python 2: of it the tests read the cases alone.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-warn-conflicts -c constraints.txt $(PIP_ARGS)
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
SHA256 := $(if $(shell command -v sha256sum 2>/dev/null),sha256sum,shasum -a 256)

# ONNX Runtime sends no usage data, whichever program of these loads it.
export ORT_DISABLE_TELEMETRY := 1

# Tests start hundreds of processes: each would compile every source again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help serve demo test test-fast test-lab check docs bench stack train evaluate programs release try-release clean

help: ## list these verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' Makefile

serve demo: export ANTIPHON_MAKE_GOAL = $@
serve: $(SERVE_READY) ## set up, then serve on http://127.0.0.1:8998 (ARGS=...)
	$(BIN)/antiphon serve $(ARGS)

demo: $(SERVE_READY) ## ask a server questions, show answers and latency, keep the reply in out/ (AUDIO=file, AGENT=1)
	$(BIN)/python -m lab.tools.demo $(if $(AUDIO),--audio "$(AUDIO)") $(if $(AGENT),--agent) $(ARGS)

test: programs check ## set up, run every check and every test of what the product promises (ARGS=...)
	$(PYTEST) -m product $(ARGS)

# These tests mostly wait for sound in real time: six processes take what two cores have.
test-fast: WORKERS := 6
test-fast: $(DEV_READY) ## the tests of two minutes: protocol, audio, engine, models, serving (ARGS=...)
	$(PYTEST) -m fast $(ARGS)

test-lab: TIER := lab
test-lab: programs $(DEV_READY) $(WEB_READY) ## the tests of training, and of measurements made once (ARGS=...)
	$(PYTEST) -m lab $(ARGS)

check: $(DEV_READY) $(WEB_READY) ## lint, format, spelling, types, import contracts, structure
	@$(MAKE) --no-print-directory -j 2 check-types check-rest

# The two halves of make check, side by side.
check-types:
	$(BIN)/mypy

check-rest:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/lint-imports
	$(BIN)/python -m tests.repo.report
	node_modules/.bin/tsc --project web
	node_modules/.bin/tsc --project tests/web

docs: $(DOCS_READY) ## build the documentation as a site in out/site/html, with search, without a network
	$(BIN)/python -m lab.tools.site

bench: $(DEV_READY) ## measure this machine (BENCH=name ARGS=...)
	$(BIN)/python -m lab.bench.$(BENCH) $(ARGS)

# As root: networks and mounts of containers are root's.
stack: $(DEV_READY) ## build the images and run compose.yaml with them: calls, a roll, a kill, down (ARGS=...)
	$(BIN)/python -m lab.tools.stack $(ARGS)

train: $(DEV_READY) ## make the small models anew in out/train: hours, and the packages of lab/train/README.md (ARGS=...)
	$(BIN)/python -m lab.train $(ARGS)

evaluate: $(DEV_READY) ## every number of the small models' cards, by calling them (ARGS=...)
	$(BIN)/python -m lab.train.evaluate $(ARGS)

programs: ## install the system programs that make test needs (TIER=lab: make test-lab), or print the command
	@PYTHON="$(PYTHON)" tests/support/system_programs.sh $(TIER)

release: $(DEV_READY) ## build wheels, sdists and their SHA-256 sums into dist/
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	cd weights && $(abspath $(BIN))/python -m hatchling build -d ../dist
	cd dist && $(SHA256) antiphon* > SHA256SUMS

try-release: release ## install what is in dist/ into empty environments, with pip and uvx, and call the server
	$(BIN)/python -m lab.tools.try_release

clean: ## remove outputs and caches; the environment stays (rm -r .venv)
	rm -rf out dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Antiphon needs Python 3.11 or newer: make PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Python's venv module is needed (Debian: python3-venv)"; exit 1; }

$(SERVE_READY): | $(BIN)/python
	@echo "==> setting up $(VENV): the server$(if $(EXTRAS), with $(EXTRAS))"
	$(PIP) -e '.$(if $(EXTRAS),[$(EXTRAS)])'
	@rm -f $(VENV)/.serve-* && touch $@

$(DEV_READY): | $(SERVE_READY)
	@echo "==> setting up $(VENV): the tools of development, and upstream's models to compare with"
	$(PIP) -e '.[torch,mlx,pocket,otel,zeroconf,webrtc,quantize,dev]' einops
	$(PIP) --no-deps moshi autobahntestsuite
	@rm -f $(VENV)/.dev-* && touch $@

$(DOCS_READY): | $(SERVE_READY)
	@echo "==> setting up $(VENV): Sphinx, for the documentation"
	$(PIP) -e '.[docs]'
	@rm -f $(VENV)/.docs-* && touch $@

$(WEB_READY): | $(BIN)/python
	@echo "==> setting up node_modules: what checks and drives the page"
	@node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)' && npm --version >/dev/null || \
		{ echo "The page is checked with Node.js 18 or newer and npm (Debian: apt-get install nodejs npm)"; exit 1; }
	npm ci --ignore-scripts
	@rm -f $(VENV)/.web-* && touch $@
