# The two commands of the README are `make dev` and `make test`; each sets up what it needs in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
SECONDS ?= 60
HOURS ?= 1
TARGETS ?=

# MESSAGE reaches the recipe through the environment, and unexpanded, so that its quotes and dollars stay what they are.
override MESSAGE := $(value MESSAGE)
export MESSAGE

.PHONY: dev test bench lint types imports unit fuzz endurance image image-test kind kind-down lock clean

# One message (MESSAGE="…") or a chat, against the embedded Runtime, through the real host.
dev: $(VENV)/.dev
	@exec $(BIN)/pod-host dev $${MESSAGE:+"--message=$$MESSAGE"} $(ARGS)

test: $(VENV)/.test lint types imports unit

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

imports: $(VENV)/.test
	$(BIN)/lint-imports

unit: $(VENV)/.test
	$(BIN)/python -m pytest $(ARGS)

$(VENV)/.test: locks/test.lock pyproject.toml | $(VENV)/.made
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r locks/test.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(VENV)/.test $(VENV)/.dev

$(VENV)/.image: locks/image.lock $(VENV)/.test
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r locks/image.lock
	@touch $@

$(VENV)/.fuzz: locks/fuzz.lock $(VENV)/.test
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r locks/fuzz.lock
	@touch $@

$(VENV)/.dev: locks/dev.lock pyproject.toml | $(VENV)/.made
	@echo "Setting up $(VENV) (once) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r locks/dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# A half-made venv never passes for a whole one: the mark is written last.
$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "error: $(PYTHON) was not found; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1), but Python 3.11 or newer is needed; name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "error: $(PYTHON) has no venv module; on Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# The coverage-guided run, SECONDS for each target (TARGETS="…": some of them). See docs/fuzzing.md.
fuzz: $(VENV)/.fuzz
	$(BIN)/python -m tests.fuzz.run --seconds $(SECONDS) $(TARGETS)

# Turns and commands under faults that come at random by a seed, for HOURS (ARGS="--seed S": that run). See docs/endurance.md.
endurance: $(VENV)/.test
	$(BIN)/python -m tests.endurance --hours $(HOURS) $(ARGS)

# What a user would feel, beside what they would use instead: all benches (ARGS="NAME …": some; ARGS=--short: fewer rounds, and
# a failure when a number is off by more than half). See docs/performance.md.
bench: $(VENV)/.dev
	@$(BIN)/python -m bench $(ARGS)

# Both images, by docker, podman or buildah. BASE_IMAGE=… and ENGINE=… choose; see image/build.sh.
image:
	@sh image/build.sh

# The image and the manifests, for real: as root on Debian, which it brings the container tools to. Some minutes.
image-test: $(VENV)/.image
	@sh tests/image/packages.sh
	$(BIN)/python -m pytest tests/image --timeout 900 $(ARGS)

# A cluster on this machine with a sandbox and the embedded Runtime in it, and one message (MESSAGE="…"). See docs/kubernetes.md.
kind:
	@sh k8s/kind/up.sh

kind-down:
	@sh k8s/kind/down.sh

# Needs uv on PATH.
lock:
	sh locks/compile.sh

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
