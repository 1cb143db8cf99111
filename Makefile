# make setup | demo | test | test-system | test-all | check | docs | bench | experiments | artifact — everything happens in .venv, from this folder's own files.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Seconds between two progress lines of `make setup`.
BEAT_S ?= 10
INPUTS := pyproject.toml constraints.txt
# The tests start hundreds of processes, each of which would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

# Each process runs one test file at a time, the slowest folders first (tests/support/suite_order.py). The tests that
# take longest are listed at the end.
PYTEST := $(BIN)/pytest -q --durations=15 --durations-min=5 --maxprocesses 8 --dist loadfile --no-loadscope-reorder -n
# One process more than there are processors, because many tests wait.
TEST_PROCESSES := $(shell $(PYTHON) -c 'import os; print(os.cpu_count() + 1)' 2>/dev/null || echo logical)

.PHONY: setup demo test test-system test-slow test-all test-torch test-trainers gpu check docs format bench experiments artifact clean
.DEFAULT_GOAL := setup

setup: $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/peelsum demo

test: $(VENV)/.installed
	$(PYTEST) $(TEST_PROCESSES) -m "not slow and not system"

# Whole systems of processes, which take as long as `make test`.
test-system: $(VENV)/.installed
	$(PYTEST) logical -m "system and not slow"

# The tests that neither of them runs.
test-slow: $(VENV)/.installed
	$(PYTEST) logical -m slow

test-all: $(VENV)/.installed
	$(PYTEST) logical

# tests/torch with another version of torch, in a separate environment.
TORCH ?= 2.15.0
TORCH_VENV := build/torch-$(TORCH)
test-torch:
	test -d $(TORCH_VENV) || $(PYTHON) -m venv $(TORCH_VENV)
	grep -v '^torch==' constraints.txt > $(TORCH_VENV)/constraints.txt
	$(TORCH_VENV)/bin/pip install --quiet -c $(TORCH_VENV)/constraints.txt -e '.[dev]' torch==$(TORCH)
	$(TORCH_VENV)/bin/pytest -q -n logical --dist loadfile tests/torch tests/codec/test_gpu_compiles.py -m "not slow and not system"
	$(TORCH_VENV)/bin/pytest -q tests/cli/test_snippets.py -k "torch.md or traces.md or train-a-model.md"

# The examples of all trainers, with those that `make setup` leaves out, in a separate environment.
TRAINERS := build/trainers
test-trainers:
	test -d $(TRAINERS) || $(PYTHON) -m venv $(TRAINERS)
	$(TRAINERS)/bin/pip install --quiet -c constraints.txt -e '.[dev]' deepspeed==0.19.8 torchtitan==0.2.2 torchft==0.2.0 parameterized==0.9.0
	@echo "DeepSpeed compiles an operator the first time, for minutes"
	PATH=$(abspath $(TRAINERS)/bin):$$PATH DS_ACCELERATOR=cpu $(TRAINERS)/bin/python -c 'from deepspeed.accelerator import get_accelerator as a; a().create_op_builder("ShareMemCommBuilder").load()'
	PATH=$(abspath $(TRAINERS)/bin):$$PATH DS_ACCELERATOR=cpu $(TRAINERS)/bin/pytest -q tests/torch/test_trainers.py tests/torch/test_torchft.py

# On a machine with a GPU: tests and measurements, the most valuable first, each with a limit in seconds, ten minutes
# in all. The next one runs whatever the one before it found. GPU_PYTHON: of an environment that has all packages.
GPU_PYTHON ?= $(BIN)/python
GPU_TESTS := $(GPU_PYTHON) -m pytest -q
gpu: export PYTHONPATH := $(CURDIR):$(CURDIR)/cli:$(CURDIR)/common:$(CURDIR)/control_plane:$(CURDIR)/host:$(CURDIR)/switch:$(CURDIR)/topology
gpu: $(if $(filter file,$(origin GPU_PYTHON)),$(VENV)/.installed)
	@$(GPU_PYTHON) -c 'import sys, torch; torch.cuda.is_available() or sys.exit("gpu: torch " + torch.__version__ + " finds none; install its CUDA build on a machine with an NVIDIA GPU")'
	@failed=; run() { limit=$$1; shift; echo "gpu: $$*"; timeout -k 10 $$limit "$$@" || failed="$$failed$$* (exit $$?); "; }; \
	run 150 $(GPU_TESTS) tests/codec/test_segments.py tests/codec/test_gpu_kernels.py tests/codec/test_sketch.py tests/codec/test_index.py tests/allreduce/test_random_jobs.py::test_sums_with_a_gpu_are_those_of_the_host tests/codec/test_gpu_counts.py; \
	run 100 $(GPU_PYTHON) -m benchmarks gpu gpu_stages --out docs/results/gpu; \
	run 150 $(GPU_PYTHON) -m benchmarks train --model ncf,bert,vgg19 --cpu --device cuda --out docs/results/gpu; \
	run 80 $(GPU_PYTHON) -m benchmarks codec --device cuda --support uniform --elements 16777216,1048576,134217728 --density 0.01,0.05,0.001,0.2 --out docs/results/gpu; \
	run 120 $(GPU_TESTS) tests/torch/test_hook_on_gpu.py tests/torch/test_words_stay_on_device.py tests/codec/test_gpu_allreduce.py tests/codec/test_gpu_out_of_memory.py tests/codec/test_gpu_several.py tests/torch/test_hook_training.py tests/bench/test_bench_gpu.py tests/bench/test_lhc_gpu.py; \
	if [ -n "$$failed" ]; then echo "gpu: failed: $$failed"; exit 1; fi

# Format, lint, types, layers.
check: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The documentation, into build/docs; a warning is an error.
docs: $(VENV)/.installed
	$(BIN)/sphinx-build -q -E -W --keep-going -b html docs build/docs
	$(BIN)/sphinx-build -q -W --keep-going -b man docs build/man

format: $(VENV)/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks switch codec --again
	$(BIN)/peelsum bench endpoint
	$(BIN)/peelsum bench allreduce

# The experiments of docs/results/experiments. An interrupted run is continued.
EXPERIMENTS := $(notdir $(patsubst %/,%,$(wildcard docs/results/experiments/*/)))
experiments: $(VENV)/.installed
	$(BIN)/python -m benchmarks $(EXPERIMENTS)

# Every claim of the README, measured here: make artifact ARTIFACT="--only exact bytes"
artifact: $(VENV)/.installed
	$(BIN)/python -m benchmarks.artifact $(ARTIFACT)

$(VENV)/.installed: $(INPUTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "python: $$($(PYTHON) -V) is too old; peelsum needs 3.11 or later: make PYTHON=python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "python: the venv module is missing; on Debian: apt-get install python3-venv" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing the packages of constraints.txt; the first time that takes minutes"
	@$(BIN)/pip install --disable-pip-version-check --progress-bar off -c constraints.txt -e '.[dev]' > $(VENV)/install.log 2>&1 & \
	pip=$$!; trap 'kill $$pip' INT TERM; waited=0; \
	while kill -0 $$pip 2>/dev/null; do \
	  sleep 1; waited=$$((waited + 1)); \
	  test $$((waited % $(BEAT_S))) -eq 0 || continue; \
	  packages=$$(sed -n 's/^Installing collected packages: //p' $(VENV)/install.log | wc -w); \
	  if test $$packages -gt 0; then echo "$$waited s: installing $$packages packages"; \
	  else echo "$$waited s: $$(grep -c . $(VENV)/install.log) lines, last: $$(tail -n 1 $(VENV)/install.log | cut -c 1-80)"; fi; \
	done; \
	wait $$pip || { grep -v '^ ' $(VENV)/install.log | tail -n 20 >&2; exit 1; }
	@touch $@

clean:
	rm -rf $(VENV)
