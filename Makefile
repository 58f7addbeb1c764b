# Everything a developer runs. Needs make and either Python >= 3.11 or uv; nothing is installed outside this folder.

VENV       := .venv
STAMP      := $(VENV)/.complete
NEWEST_VENV := .venv-newest
BENCH_VENV := .venv-bench
BENCH_STAMP := $(BENCH_VENV)/.complete

# PYTHON=/path/to/python chooses the interpreter for a new environment, NEWEST=/path/to/python that of test-newest;
# ARGS="..." is handed to chaos, demo, test, test-newest and bench.
PYTHON ?=
NEWEST ?=
ARGS   ?=
VERSION ?=

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

# Prints the newest released Python of this machine, of those that are supported. What pyenv has counts even where its
# shims do not run; an interpreter that was built without a module that the tests need does not count.
define FIND_NEWEST
for minor in 14 13 12 11; do \
  for candidate in $(or $(NEWEST),$(VENV)/bin/python python3.$$minor python3 python \
      "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.$$minor.*/bin/python3.$$minor); do \
    if "$$candidate" -c 'import ensurepip, sqlite3, ssl, sys, venv; \
        sys.exit(sys.version_info[:2] != (3, int(sys.argv[1])) or sys.version_info[3] != "final")' \
        $$minor >/dev/null 2>&1; then \
      echo "$$candidate"; exit 0; \
    fi; \
  done; \
done; \
echo 'make: found no Python from 3.11 to 3.14 that runs and has the modules venv, sqlite3 and ssl.' >&2; \
exit 1
endef

# $(call make_venv,DIR,PYTHON): an empty environment with a pip that knows dependency groups; kept when it already works.
define make_venv
if ! $(1)/bin/python -m pip --version >/dev/null 2>&1; then \
  "$(2)" -m venv --clear $(1); \
fi; \
$(1)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
endef

# $(call make_dev_env,DIR,PYTHON): everything that developing needs; with uv exactly what uv.lock says.
define make_dev_env
if command -v uv >/dev/null 2>&1; then \
  env -u VIRTUAL_ENV UV_PROJECT_ENVIRONMENT=$(1) \
    uv sync --quiet --frozen --all-extras --group dev --python "$(2)"; \
else \
  $(call make_venv,$(1),$(2)); \
  $(1)/bin/python -m pip install --quiet --disable-pip-version-check \
    --editable '.[export,postgres,server,vault]' --group dev; \
fi
endef

.DEFAULT_GOAL := help
.PHONY: chaos docs help demo test test-agents test-newest test-services check format pictures bench dist release lock clean .venv

help: ## list the targets
	@grep -hE '^[a-z.-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z.-]+):.*## (.*)/  make \1|\2/' | \
	  while IFS='|' read -r target words; do printf '%-19s %s\n' "$$target" "$$words"; done

demo: $(STAMP) ## show what holdfast does, on this machine, without any agent or model
	@$(VENV)/bin/python examples/demo.py $(ARGS)

chaos: $(STAMP) ## run turns while everything breaks, on either database, for minutes (ARGS=--write publishes it)
	@$(VENV)/bin/python -m tests.chaos $(ARGS)

# where nothing may be skipped, the real agents and the browser are installed before the first test needs one
test: $(STAMP) ## run the tests (ARGS="-k lease" selects some)
	@[ "$$HOLDFAST_REQUIRE" != all ] || $(VENV)/bin/python -m tests.agents.lab.install
	@[ "$$HOLDFAST_REQUIRE" != all ] || $(VENV)/bin/python -m tests.page.browser
	@$(VENV)/bin/python -m pytest -n logical --dist worksteal $(ARGS)

# Where the development environment has the newest Python already, there is nothing more to run. The contract runs on
# SQLite in a file, which uses all that SQLite in memory uses of Python's sqlite3.
test-newest: $(STAMP) ## run the unit, contract (SQLite file) and acceptance tests on the newest Python of this machine
	@set -e; \
	version() { "$$1" -c 'import platform; print(platform.python_version())'; }; \
	python="$$($(FIND_NEWEST))"; \
	if [ "$$python" = $(VENV)/bin/python ]; then \
	  echo "make: Python $$(version "$$python"), which make test uses, is the newest one here"; exit 0; \
	fi; \
	echo "make: testing on Python $$(version "$$python")"; \
	if [ "$$(version $(NEWEST_VENV)/bin/python 2>/dev/null)" != "$$(version "$$python")" ]; then \
	  rm -rf $(NEWEST_VENV); \
	fi; \
	if [ ! $(NEWEST_VENV)/.complete -nt $(STAMP) ]; then \
	  $(call make_dev_env,$(NEWEST_VENV),$$python); \
	  touch $(NEWEST_VENV)/.complete; \
	fi; \
	$(NEWEST_VENV)/bin/python -m pytest -n logical --dist worksteal tests/unit tests/acceptance tests/contract \
	  -k 'not contract or not (postgres or http or memory)' $(ARGS)

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

pictures: $(STAMP) ## draw the pictures of the documentation from real runs
	@$(VENV)/bin/python docs/generate_terminal.py
	@$(VENV)/bin/python -m tests.page.pictures

bench: $(BENCH_STAMP) ## measure holdfast beside its peers, in an environment of its own
	@$(BENCH_VENV)/bin/python bench/run.py $(ARGS)

dist: $(STAMP) ## build the wheel and the sdist into dist/
	@rm -rf dist
	@$(VENV)/bin/python -m build --no-isolation --outdir dist .

release: $(STAMP) ## make a release: changelog, tag, wheel, sdist and checksums (VERSION=1.2.0)
	@$(VENV)/bin/python tools/release.py '$(VERSION)'

lock: ## resolve the development dependencies anew into uv.lock (needs uv)
	uv lock --upgrade

clean: ## remove the environments, caches and built files
	rm -rf $(VENV) $(NEWEST_VENV) $(BENCH_VENV) .cache dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

.venv: $(STAMP) ## make the development environment (done by the others when it is missing or old)

$(STAMP): pyproject.toml uv.lock
	@echo 'make: preparing $(VENV)'
	@set -e; \
	if command -v uv >/dev/null 2>&1; then \
	  python="$$( { $(FIND_PYTHON); } 2>/dev/null )" || python='>=3.11'; \
	else \
	  python="$$($(FIND_PYTHON))"; \
	fi; \
	$(call make_dev_env,$(VENV),$$python)
	@touch $@

$(BENCH_STAMP): pyproject.toml bench/requirements.txt
	@echo 'make: preparing $(BENCH_VENV)'
	@set -e; python="$$($(FIND_PYTHON))"; $(call make_venv,$(BENCH_VENV),$$python)
	@$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --editable '.[postgres,server,vault]' --requirement bench/requirements.txt
	@touch $@
