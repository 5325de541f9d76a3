# make up      install what is missing, then start the service   (make up ARGS="--port 8081")
# make test    run every test
# make lint    formatting, rules, types, arrows between the packages, length of files
# make bench   both engines beside what is usual, into loadtests/results (the card's figures where there is one)
# make campaign NAME=cpu_mixed   load against the service, gates and a report (ARGS="--web" shows locust's page)
# make docs    write what follows from the code again: settings, figures, OpenAPI, dashboards
# make clean   remove the virtual environment and the caches of the tools

PYTHON ?= $(shell for p in python3 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null && echo $$p && break; done)
ARGS ?=
TESTS ?= tests
NAME ?=
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: up test lint bench campaign weights clean
.DEFAULT_GOAL := up

up: $(INSTALLED)
	@exec $(BIN)/vramgate up $(ARGS)

test: weights
	@$(BIN)/python -m pytest $(TESTS)

lint: $(INSTALLED)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@git ls-files -z '*.py' | xargs -0 awk 'FNR == 301 {print FILENAME ": over 300 lines"; long = 1} END {exit long}'

bench: weights
	@$(BIN)/python -m loadtests.bench_llama
	@$(BIN)/python -m loadtests.bench_unet

campaign: weights
	@test -n "$(NAME)" || { echo "which one? make campaign NAME=cpu_mixed" >&2; exit 1; }
	@$(BIN)/python -m loadtests.campaigns $(NAME) $(ARGS)

docs: $(INSTALLED)
	@PYTHONPATH=. $(BIN)/python docs/build.py
	@$(BIN)/vramgate openapi --out docs/openapi.json
	@$(BIN)/python docker/grafana/build.py

weights: $(INSTALLED)
	@$(BIN)/python -m backend.checkpoint >/dev/null

# The stamp is younger than what it was made from, so a second start installs nothing.
$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is needed: sudo apt-get install python3 python3-venv" >&2; exit 1; }
	@"$(PYTHON)" frontend/interpreter.py
	@test -x $(BIN)/python || { echo "making .venv with $$("$(PYTHON)" --version)"; "$(PYTHON)" -m venv .venv; }
	@echo "installing the packages of constraints.txt (about 1.5 GB on disk, some minutes)"
	@$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[embedded,dev,loadtest]'
	@touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
