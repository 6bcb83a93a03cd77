.PHONY: check test all docs

check:
	ruff format --check .
	ruff check .
	mypy
	python -m pytest -q -m "not slow and not drill" tests/test_layout.py tests/test_docs.py tests/config/test_config.py $$(python -m tools.changed_tests)

test:
	python -m pytest

all:
	python -m pytest -m "not drill"

docs:
	python -m tools.reference
