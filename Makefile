# Every target works from nothing: it makes .venv and installs what it needs.
# The CPU build of torch is enough here; TORCH_PIP_ARGS takes pip options that name an index of such builds.

SHELL := /bin/bash
# A cluster that cannot be started fails the tests instead of skipping them.
export NRP_REQUIRE_SLURM := 1
SUPPORTED := import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info < (3, 13))
PYTHON ?= $(shell for python in python3.11 python3.12 python3.10 python3; do \
	$$python -c '$(SUPPORTED)' 2>/dev/null && echo $$python && break; done)
TORCH ?= torch==2.13.0
TORCH_PIP_ARGS ?=
BIN := .venv/bin

.PHONY: demo test test-all bench bench-gpu soak lint format clean

demo: .venv/installed
	$(BIN)/nemo-resiliency demo

test: lint
	$(BIN)/pytest -m "not slow"

test-all: lint
	$(BIN)/pytest

bench: .venv/installed
	$(BIN)/python -m tests.benchmarks.recovery
	$(BIN)/python -m tests.benchmarks.preemption
	$(BIN)/python -m tests.benchmarks.checkpoint
	$(BIN)/python -m tests.benchmarks.straggler
	$(BIN)/python -m tests.benchmarks.inprocess
	$(BIN)/python -m tests.benchmarks.rerun
	$(BIN)/python -m tests.benchmarks.overhead
	$(BIN)/python -m tests.benchmarks.submission
	$(BIN)/python -m tests.benchmarks.goodput_check
	$(BIN)/python -m tests.benchmarks.goodput

# On a machine with two GPUs.
bench-gpu: .venv/installed
	$(BIN)/python -m tests.benchmarks.gpu

# Faults at random on a real cluster, for half an hour.
soak: .venv/installed
	$(BIN)/python -m tests.benchmarks.soak

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/installed: pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		apt-get update && apt-get install --yes python3 python3-venv && exec $(MAKE) $@ PYTHON=python3; fi
	@if [ -n "$(PYTHON)" ]; then set -e; \
		test -x $(BIN)/python || $(PYTHON) -m venv .venv; \
		$(BIN)/python -m pip install --quiet --upgrade "pip>=24"; \
		$(BIN)/python -m pip install --quiet $(TORCH_PIP_ARGS) "$(TORCH)"; \
		$(BIN)/python -m pip install --quiet --editable ".[runtime,dev,integrations]"; \
		touch $@; fi

clean:
	rm -rf .venv build dist *.egg-info
