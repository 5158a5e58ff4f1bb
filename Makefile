# Every command a contributor or CI needs. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/sh
UV := tools/uv
RUN := $(UV) run --frozen

.PHONY: help sync demo demo-down test check static format generate golden bench nightly

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 14

sync: ## the development environment, from the lock file
	$(UV) sync --frozen --quiet

demo: sync ## the whole product on this machine: cluster, helm install, two tenants, isolation table, salt rotation
	$(RUN) python -m stack.demo up

demo-down: sync ## removes every trace of the demo
	$(RUN) python -m stack.demo down

static: sync ## format, lint, types, imports
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) lint-imports

check: static ## static, unit, property, golden, contract: about a minute
	$(RUN) python tools/run_tests.py unit property golden contract

test: static ## everything, and how many tests ran at each level
	$(RUN) python tools/run_tests.py unit property golden contract component integration engine e2e goals device

nightly: sync ## the state machine of blocks and quotas, 1,000,000 steps from seeds of the day
	BLOCKWARDEN_MACHINE=nightly BLOCKWARDEN_MACHINE_SEED=$$(date +%Y%m%d00) $(RUN) python tools/run_tests.py machine scheduler-machine

bench: sync ## the benchmarks, as ratios measured side by side in one run
	$(RUN) python tools/run_bench.py

format: sync ## formats the code and sorts imports
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

generate: sync ## crds/, the CRD chart, the field reference and the refusal table from the code
	$(RUN) python -m blockwarden_operator.crd --write
	$(RUN) python -m blockwarden_engine.refusal_table > docs/reference-refusals.md

golden: sync ## rewrites the golden files after an intended change of rendered manifests
	UPDATE_GOLDEN=1 $(RUN) python tools/run_tests.py golden
