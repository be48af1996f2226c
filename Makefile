# Each target is a line of the README. Python 3.11+ and make are all that a fresh machine needs.
# The first Python that runs and is new enough: a pyenv shim can exist and not work.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin

.PHONY: setup check format test vllm-env vllm-study test-podman test-vllm test-vllm-full soak quickstart bench-simulator bench-classification bench-agreement bench-load bench-capacity bench-search

setup: .venv/.installed  ## the tuner and its tools in .venv

.venv/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it, or say where: make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev,dashboard]'
	touch $@

check: setup  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## put the code into its form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: setup  ## every test that needs no engine installed
	$(BIN)/pytest -n auto -m "not vllm and not vllm_full and not gpu and not podman"

quickstart: setup  ## a study on a simulated H100, in under a minute
	$(BIN)/autotune study studies/quickstart.yaml $(if $(wildcard runs/quickstart),--resume)

vllm-env:  ## a real vLLM for the CPU and a tiny model, in an environment of its own
	bash scripts/vllm_env.sh

vllm-study: setup vllm-env  ## eight trials on that vLLM, under 15 minutes on 2 cores
	$(BIN)/autotune study studies/vllm-cpu.yaml $(if $(wildcard runs/vllm-cpu),--resume)

test-podman: setup  ## the tests with real containers; installs podman where it may
	bash scripts/podman_image.sh
	$(BIN)/pytest -m podman

test-vllm: setup vllm-env  ## the tests that launch it
	$(BIN)/pytest -m vllm

test-vllm-full: setup vllm-env  ## and the rest of the faults on it: about fifteen minutes on 2 cores
	$(BIN)/pytest -m "vllm or vllm_full"

soak: setup  ## 200 trials with random faults and kills of the tuner; goes on where it stopped, or anew after rm -r runs/soak
	$(BIN)/python -m benchmarks.soak

bench-simulator: setup  ## the simulator against published measurements, and its ranking of a real vLLM
	$(BIN)/python -m benchmarks.simulator
	$(BIN)/python -m benchmarks.simulator.vllm_cpu rank

bench-classification: setup  ## the rules for failures of vLLM against labelled ones
	$(BIN)/python -m benchmarks.classification

bench-agreement: setup vllm-env  ## our throughput and TPOT against `vllm bench serve` on a real vLLM, 10 pairs
	$(BIN)/python -m benchmarks.agreement

bench-load: setup  ## the load client's clock against a server that knows, and others' beside it
	$(BIN)/python -m benchmarks.load $(if $(wildcard .venv-vllm/bin/vllm),--vllm-bench .venv-vllm/bin/vllm)

bench-capacity: setup  ## searches of a capacity on engines whose capacity is known
	$(BIN)/python -m benchmarks.capacity

bench-search: setup  ## launches to the best configuration, ours and others', where the best is known; ten minutes
	$(BIN)/python -m benchmarks.search
