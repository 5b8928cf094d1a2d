# Two commands on a fresh machine: `make demo`, `make test`. Each prepares what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: setup demo consortium test quick check chaos lint types bench docs docs-outputs figures screenshots reference lock clean

setup: $(STAMP)

# Exact versions with hashes, then the package itself; made again only when the lock or the build file changes.
$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	touch $(STAMP)

demo: setup
	$(BIN)/sfumato demo

consortium: setup
	$(BIN)/sfumato demo consortium

test: setup
	$(BIN)/pytest

lint: setup
	$(BIN)/ruff check src tests benchmarks examples docs/conf.py docs/outputs.py docs/_ext docs/figures docs/reference/write.py
	$(BIN)/ruff format --check src tests benchmarks examples docs/conf.py docs/outputs.py docs/_ext docs/figures docs/reference/write.py

types: setup
	$(BIN)/mypy

# The tests a change needs most (QUICK in tests/conftest.py), meant for two minutes once the programs are compiled.
quick: setup
	$(BIN)/pytest --quick

check: lint types test

# The node killed with -9 two hundred times, at planted and at random moments: about ten minutes.
chaos: setup
	SFUMATO_CHAOS_ROUNDS=200 $(BIN)/pytest -n 0 -s tests/chaos/test_node.py -k kill_nine

bench: setup
	$(BIN)/python benchmarks/speed.py

# The site, in build/site; tutorials are run, nothing is fetched, a warning is an error.
docs: setup
	$(BIN)/sphinx-build -W --keep-going -b html -d build/doctrees docs build/site

# What commands print in README and guides, from runs made now: some minutes.
docs-outputs: setup
	$(BIN)/python docs/outputs.py

# The figures of measured tables, from docs/measurements.
figures: setup
	$(BIN)/python docs/figures/draw.py

# The pages of docs/reference that the code declares: keys, commands, public names.
reference: setup
	$(BIN)/python docs/reference/write.py

# The pictures of the report and of the console in docs/figures: needs the system's chromium.
screenshots: setup
	$(BIN)/python docs/figures/screenshots.py

# Names, versions and hashes only: no registry is named in the lock.
lock:
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet uv
	$(VENV)-lock/bin/uv pip compile --quiet --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --extra dev --extra docs --extra node --output-file requirements.lock pyproject.toml
	rm -rf $(VENV)-lock

clean:
	rm -rf $(VENV) .jax-cache build dist src/*.egg-info demo-output
