# Everything a developer runs. Needs make and either Python >= 3.11 or uv; nothing is installed outside this folder.

VENV       := .venv
STAMP      := $(VENV)/.complete
BENCH_VENV := .venv-bench
BENCH_STAMP := $(BENCH_VENV)/.complete

# PYTHON=/path/to/python chooses the interpreter for a new environment; ARGS="..." is handed to chaos, demo, test and bench.
PYTHON ?=
ARGS   ?=

# Prints the first Python that is new enough and can make environments; says what to do when there is none.
define FIND_PYTHON
for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
    echo "$$candidate"; exit 0; \
  fi; \
done; \
echo 'make: found no Python >= 3.11 with the venv module.' >&2; \
echo '      Install one (Debian, Ubuntu: python3-venv), install uv, or say: make PYTHON=/path/to/python' >&2; \
exit 1
endef

# $(call make_venv,DIR): an empty environment with a pip that knows dependency groups; kept when it already works.
define make_venv
if ! $(1)/bin/python -m pip --version >/dev/null 2>&1; then \
  python="$$($(FIND_PYTHON))" || exit 1; \
  "$$python" -m venv --clear $(1); \
fi; \
$(1)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
endef

.DEFAULT_GOAL := help
.PHONY: chaos docs help demo test test-agents test-services check format bench dist lock clean .venv

help: ## list the targets
	@grep -hE '^[a-z.-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z.-]+):.*## (.*)/  make \1|\2/' | \
	  while IFS='|' read -r target words; do printf '%-19s %s\n' "$$target" "$$words"; done

demo: $(STAMP) ## show what holdfast does, in ten seconds, on this machine
	@$(VENV)/bin/python examples/demo.py $(ARGS)

chaos: $(STAMP) ## run turns while everything breaks, on either database, for minutes (ARGS=--write publishes it)
	@$(VENV)/bin/python -m tests.chaos $(ARGS)

# where nothing may be skipped, the real agents are installed before the first test needs one
test: $(STAMP) ## run the tests (ARGS="-k lease" selects some)
	@[ "$$HOLDFAST_REQUIRE" != all ] || $(VENV)/bin/python -m tests.agents.lab.install
	@$(VENV)/bin/python -m pytest -n logical --dist worksteal $(ARGS)

test-agents: $(STAMP) ## install the real agents into .cache and run the tests that drive them
	@$(VENV)/bin/python -m tests.agents.lab.install
	@$(VENV)/bin/python -m pytest -n logical --dist worksteal tests/agents $(ARGS)

test-services: $(STAMP) ## run the units of examples/server under a real systemd, in namespaces of its own (needs root)
	@$(VENV)/bin/python -m tests.services

check: $(STAMP) ## lint, formatting, types, layers
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo

format: $(STAMP) ## format the code and fix what ruff can fix
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: $(STAMP) ## write the generated parts of the documentation
	@$(VENV)/bin/python docs/generate_architecture.py
	@$(VENV)/bin/python docs/generate_cli.py

bench: $(BENCH_STAMP) ## measure holdfast beside its peers, in an environment of its own
	@$(BENCH_VENV)/bin/python bench/run.py $(ARGS)

dist: $(STAMP) ## build the wheel and the sdist into dist/
	@rm -rf dist
	@$(VENV)/bin/python -m build --no-isolation --outdir dist .

lock: ## resolve the development dependencies anew into uv.lock (needs uv)
	uv lock --upgrade

clean: ## remove the environments, caches and built files
	rm -rf $(VENV) $(BENCH_VENV) .cache dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

.venv: $(STAMP) ## make the development environment (done by the others when it is missing or old)

$(STAMP): pyproject.toml uv.lock
	@echo 'make: preparing $(VENV)'
	@set -e; \
	if command -v uv >/dev/null 2>&1; then \
	  python="$$( { $(FIND_PYTHON); } 2>/dev/null )" || python='>=3.11'; \
	  env -u VIRTUAL_ENV UV_PROJECT_ENVIRONMENT=$(VENV) \
	    uv sync --quiet --frozen --all-extras --group dev --python "$$python"; \
	else \
	  $(call make_venv,$(VENV)); \
	  $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
	    --editable '.[postgres,server]' --group dev; \
	fi
	@touch $@

$(BENCH_STAMP): pyproject.toml bench/requirements.txt
	@echo 'make: preparing $(BENCH_VENV)'
	@set -e; $(call make_venv,$(BENCH_VENV))
	@$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --editable '.[postgres,server]' --requirement bench/requirements.txt
	@touch $@
