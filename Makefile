PYTHON ?= python3
VENV := .venv
DOCS_VENV := .venv-docs
RUN := $(VENV)/bin/python run.py
ROWS := 250000

.PHONY: demo reproduce test lint docs setup clean
.DELETE_ON_ERROR:

setup: $(VENV)/.ready

$(VENV)/.installed: requirements.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
	    sys.exit(0 if v >= (3, 11) else "Python 3.11 or newer is needed, got %d.%d: make PYTHON=python3.11" % v)'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(VENV)/.ready: $(VENV)/.installed
	@echo "compiling the loops of a training step, once (half a minute)"
	$(VENV)/bin/python -c "import harness.run.assemble"
	touch $@

# Data that is there is not made again; a grid that was cut short goes on.
demo: demo/data/meta.json demo/small/meta.json
	$(RUN) grid experiments/quickstart.yaml
	$(RUN) grid experiments/choice.yaml
	$(RUN) compare demo/choice --to cpr_mfu --measure drop

demo/criteo.tsv: | setup
	$(RUN) data synth --rows $(ROWS) --seed 0 --out $@

demo/data/meta.json: | demo/criteo.tsv
	$(RUN) data prepare demo/criteo.tsv --out demo/data

demo/small/meta.json: | demo/criteo.tsv
	$(RUN) data prepare demo/criteo.tsv --categories hash --table-rows 0.0005 --out demo/small

# The claims of the papers: experiments/claims/, docs/REPRODUCTION.md.
reproduce: setup
	$(RUN) reproduce --page docs/REPRODUCTION.md

test: setup
	$(VENV)/bin/python -m pytest -n auto -m "not slow" --durations=15

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/basedpyright

# A site of docs/ in site/, to be read from there or by `python3 -m http.server -d site`, which the search needs.
docs: $(DOCS_VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict --quiet

$(DOCS_VENV)/.installed: requirements-docs.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	touch $@

clean:
	rm -rf demo/quickstart demo/choice .pytest_cache .ruff_cache
