# Each command does its own set-up; see tools/bootstrap.py.
# Settings: PYTHON (the interpreter for .venv), ARGS (more arguments for pytest).

PYTHON ?= python3
PYTEST := .venv/bin/python tools/driver_env.py .venv/bin/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-coopmat lane lanes moltenvk stress mutation conformance check format links clean distclean

help:
	@echo "make demo       convert a published face detector, run it on every backend, write a report"
	@echo "make test       run the tests (ARGS='tests/unit -k name' for some of them)"
	@echo "make conformance  all 14,082 official TOSA 1.0 tests (about an hour, 3 GB, resumable)"
	@echo "make test-coopmat  NVFP4 tests on a CPU driver with cooperative matrices, unpacked beside the system"
	@echo "make lane LANE=NAME  tests on one driver, result into docs/portability/ (make lanes: all of them)"
	@echo "make moltenvk   every SPIR-V module to Metal's language, as MoltenVK does it (no Mac needed)"
	@echo "make stress     200,000 submissions with random lives: memory stays flat (minutes)"
	@echo "make mutation   are planted faults found? writes docs/mutation-study.md (half an hour, resumable)"
	@echo "make check      ruff, mypy, pyright, import contracts"
	@echo "make format     let ruff reformat and fix"
	@echo "make setup      only the set-up that each of the others does by itself"
	@echo "make links      bring typings/tosavk in line with the folders"
	@echo "make clean      remove what was built; make distclean removes .venv as well"

setup:
	@$(PYTHON) tools/bootstrap.py python drivers

demo: setup
	@.venv/bin/python tools/driver_env.py .venv/bin/python tools/demo.py

test: setup
	@$(PYTHON) tools/official.py
	@TOSAVK_VALIDATION=$${TOSAVK_VALIDATION:-1} \
	TOSAVK_TOSA_TOOLS=$${TOSAVK_TOSA_TOOLS:-$(CURDIR)/build/tosa-venv} \
	$(PYTEST) $(ARGS)

conformance: setup
	@.venv/bin/python tools/driver_env.py .venv/bin/python tools/conformance.py $(ARGS)

test-coopmat: setup
	@.venv/bin/python tools/coopmat_lane.py $(ARGS)

lane: setup
	@.venv/bin/python tools/lanes.py run $(LANE) $(if $(ARGS),-- $(ARGS))

lanes: setup
	@.venv/bin/python tools/lanes.py run all

moltenvk:
	@$(PYTHON) tools/bootstrap.py python
	@PYTHONPATH=typings .venv/bin/python tools/moltenvk.py $(ARGS)

stress: setup
	@TOSAVK_STRESS=$${TOSAVK_STRESS:-200000} TOSAVK_VALIDATION=0 $(PYTEST) tests/stress -k vulkan -o timeout=7200 $(ARGS)

mutation: setup
	@.venv/bin/python tools/driver_env.py .venv/bin/python tools/mutation.py $(ARGS)

check:
	@$(PYTHON) tools/bootstrap.py python
	@failed=; \
	for tool in "ruff check ." "ruff format --check ." mypy pyright "lint-imports --no-cache"; do \
		echo "[check] $$tool"; \
		PYTHONPATH=typings .venv/bin/$$tool || failed="$$failed, $$tool"; \
	done; \
	if [ -n "$$failed" ]; then echo "[check] failed: $${failed#, }"; exit 1; fi; \
	echo "[check] all passed"

format:
	@$(PYTHON) tools/bootstrap.py python
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

links:
	@$(PYTHON) tools/link_typings.py

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

distclean: clean
	rm -rf .venv
