# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# One command each, installing what it needs: demo, test, gates, bench, faults. See README.md and CONTRIBUTING.md.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
VENV := .venv
# With CORE=2.18, say, all of this is done by that ansible-core, in an environment of its own, with a Python that it runs on.
ifdef CORE
VENV := build/core-$(CORE)
PIN = 'ansible-core==$(CORE).*'
# The collections of the newest community package: that of an older core has them too old. Each says itself that it runs on that core.
CONTROLLER = --requirement requirements.txt $(PIN) && $(BIN)/pip install --quiet --no-deps 'ansible>=12'
PYTHON = $(shell tests/python $(if $(filter 2.18 2.19,$(CORE)),3.12 3.11 3.13,3.13 3.12 3.14))
else
CONTROLLER = --requirement tests/requirements-lab.txt
endif
# The lowest and the newest that the collection is for.
CORES := 2.18 2.21
BIN := $(abspath $(VENV))/bin
export ANSIBLE_COLLECTIONS_PATH := $(abspath build/collections)
export LC_ALL := C.UTF-8

.PHONY: demo test gates lint unit sanity importer integration lab-tests long bench faults venv venv-lab venv-unit collection lab engine browser clean

# The whole path on two nodes of this machine: nothing to a printed completion.
demo: collection engine
	$(BIN)/ansible-playbook deploy_qwen.yml -i "$$(tests/lab/lab inventory)" $(ARGS)

# Everything: lint, documentation, units, the built artifact, and the real thing on the lab's nodes.
test: lint unit importer lab-tests

lint: venv collection
	tests/lint.sh

unit: venv-unit
	$(BIN)/pytest -n auto --dist loadfile tests/unit

lab-tests: venv collection engine browser
	$(BIN)/pytest --durations=25 --durations-min=20 tests/lab tests/integration

# What `make test` leaves out: a minute and more of the lab each, or another one of a kind that it has. Every command of the guides is here.
long: venv collection engine browser
	$(BIN)/pytest -m long --durations=25 --durations-min=20 tests/lab tests/integration

# What a published collection is held to, on the lowest and the newest core. Environments are kept in build/.
gates: lint importer
	@set -e; for core in $(CORES); do echo "gates: ansible-core $$core"; $(MAKE) --no-print-directory unit sanity CORE=$$core; done

sanity: venv-unit
	tests/sanity.sh $(BIN)

importer: venv collection build/importer/.done
	tests/importer.sh

bench: venv collection
	@set -o pipefail; for bench in tests/benchmarks/bench_*.py; do $(BIN)/python "$$bench"; done | tee build/bench.log | { grep -v '^figure ' || test $$? = 1; }
	@grep '^figure ' build/bench.log

faults: venv collection engine
	$(BIN)/python tests/lab/faults.py

lab: $(VENV)/.done-lab
	@tests/lab/lab deps
	@tests/lab/lab up

engine: lab
	@tests/lab/engine/install

# In which the report is looked at: Debian's package, or, as Ubuntu has none but a snap, the build that Playwright fetches from its makers' server.
browser: venv
	@$(BIN)/python tests/browser.py > /dev/null || { apt-get update -qq; if [ -n "$$(apt-cache search --names-only '^chromium-headless-shell$$')" ]; then \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium-headless-shell; \
		else $(BIN)/playwright install --with-deps --only-shell chromium; fi; $(BIN)/python tests/browser.py; }

venv: $(VENV)/.done
venv-lab: $(VENV)/.done-lab
venv-unit: $(VENV)/.done-unit

$(VENV)/.done-lab: requirements.txt tests/requirements-lab.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed here: call make PYTHON=python3.12, say.") if sys.version_info < (3, 11) else 0'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv; }
	@[ -x $(BIN)/pip ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(CONTROLLER)
	@touch $@

$(VENV)/.done-unit: $(VENV)/.done-lab tests/requirements-unit.txt
	$(BIN)/pip install --quiet --requirement tests/requirements-unit.txt $(PIN)
	@touch $@

$(VENV)/.done: $(VENV)/.done-unit tests/requirements-test.txt
	$(BIN)/pip install --quiet --requirement tests/requirements-test.txt $(PIN)
	@touch $@

build/importer/.done: $(VENV)/.done tests/requirements-importer.txt
	@[ -x build/importer/bin/pip ] || $(PYTHON) -m venv build/importer
	build/importer/bin/pip install --quiet --requirement tests/requirements-importer.txt
	@touch $@

# The checkout installs itself, as a user's would: what is played and tested is the built artifact.
collection: $(VENV)/.done-lab | build
	@$(BIN)/ansible-galaxy collection install --requirements-file collections/requirements.yml --collections-path build/collections --offline --force > build/collection.log 2>&1 || { cat build/collection.log; exit 1; }

clean:
	rm -rf build

build:
	@mkdir -p build
