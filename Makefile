# SPDX-License-Identifier: Apache-2.0
# The front door. Meson does the building and tools/check the testing; these are their names. Each
# target installs what it needs first (tools/setup), so a bare Debian machine with git, make and
# python3 is enough.

BUILD ?= build/dev
SEEDS ?= 1000
HOURS ?= 0.25
N ?= 8192
PY := .venv/bin/python
MESON := .venv/bin/meson
# meson looks for ninja on the PATH.
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: all help setup build install-py demo check check-slow sim mutants chaos fuzz soak
.PHONY: clients lint fmt docs bench coverage clean

all: build

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: ## install packages: apt, and pip into .venv
	@tools/setup

build: setup ## libtq, tqd and tq into build/dev
	@test -f $(BUILD)/build.ninja || $(MESON) setup $(BUILD)
	@$(MESON) compile -C $(BUILD)

install-py: setup ## the Python package into .venv
	@tools/install-py

demo: install-py ## train a small transformer with GRPO through tq; KILL=1 kills a rollout half-way
	@KILL=$(KILL) $(PY) examples/grpo/demo.py

check: ## every test tier, ending in counted totals
	@tools/check

check-slow: ## the same with many more seeds and cases
	@tools/check --slow

fuzz: setup ## libFuzzer over all targets: make fuzz HOURS=1; MERGE=1 takes new inputs into the tree
	@tools/fuzz --hours $(HOURS) $(if $(MERGE),--merge) $(TARGETS)

lint: ## the source checks alone
	@tools/check setup lint

sim: build ## the simulator over seeds never run before: make sim SEEDS=100000; FROM=N repeats
	@tools/sim --build $(BUILD) --seeds $(SEEDS) $(if $(FROM),--from $(FROM))

soak: MINUTES ?= 30
soak: build install-py ## 16 processes for MINUTES=30: memory and descriptors stay, bytes are right
	@TQ_SOAK_MINUTES=$(MINUTES) TQ_SOAK_PYTHON=$(CURDIR)/$(PY) TQ_SOAK_CSV=$(CURDIR)/build/soak.csv \
	    PYTEST_ADDOPTS=-s $(MESON) test -C $(BUILD) -v --timeout-multiplier 0 proc_soak

clients: build ## a controller with N=8192 clients, some of which work
	@TQ_MANY_CLIENTS=$(N) PYTEST_ADDOPTS="-s --timeout=600" \
	    $(MESON) test -C $(BUILD) -v --timeout-multiplier 5 proc_many

mutants: build ## plant faults, and show that the simulator finds each; ARGS="--help" says more
	@tools/mutants --build $(BUILD) $(ARGS)

chaos: MINUTES ?= 1
chaos: build ## kill and stop processes under clients that verify: make chaos MINUTES=10
	@$(PY) tests/proc/chaos.py --minutes $(MINUTES) --build $(BUILD) $(ARGS)

fmt: setup ## format C and Python
	@tools/fmt

docs: build ## the parts of docs/ that are made from the code
	@tools/gen-docs $(BUILD)

bench: install-py ## tq beside the reference, into bench/results; ARGS="--help" says more
	@$(PY) bench/run $(ARGS)

coverage: setup ## branches of src/core and src/wire that tests take; ARGS=--missing names the others
	@$(PY) tools/coverage $(ARGS)

clean: ## remove what was built; .venv stays
	rm -rf build
