# Everything runs in .venv, made and filled on first use. Another interpreter: make PYTHON=python3.12 test
PYTHON ?= python3.11
VENV ?= .venv
ARGS ?=

RUN := $(VENV)/bin/python -m
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
INPUTS := pyproject.toml setup.py constraints.txt

.PHONY: help train test lint types check format docs clean

help:  ## Show this list.
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

train: $(INSTALLED)  ## Train on this machine; ARGS="--env=Acrobot-v1" passes flags on.
	$(RUN) pipelines.train --runner=DirectRunner $(ARGS)

test: $(INSTALLED_DEV)  ## Run the tests; ARGS="-m slow" passes arguments to pytest.
	OMP_NUM_THREADS=1 $(RUN) pytest $(ARGS)

lint: $(INSTALLED_DEV)  ## Check format and style.
	$(RUN) ruff format --check .
	$(RUN) ruff check .

types: $(INSTALLED_DEV)  ## Check the types of the three packages.
	$(RUN) mypy

check: lint types test  ## All of the above: what has to pass before a commit.

format: $(INSTALLED_DEV)  ## Format the code and mend what can be mended.
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

docs: $(INSTALLED)  ## Write the page of settings anew.
	$(RUN) policies.config_reference > docs/config.md

clean:  ## Remove the environment and everything that was built.
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache

$(INSTALLED): $(INPUTS)
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --disable-pip-version-check -c constraints.txt -e .
	@touch $@

# The development environment holds the other one, so both stamps are set.
$(INSTALLED_DEV): $(INPUTS)
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(INSTALLED) $@
