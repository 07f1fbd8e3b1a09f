PYTHON ?= python3.11
VENV := .venv
RUN := $(VENV)/bin/python run.py

.PHONY: demo test lint setup clean

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

test: setup
	$(VENV)/bin/python -m pytest -n auto

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/basedpyright
