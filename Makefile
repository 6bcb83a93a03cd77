.PHONY: check test all docs

check:
	ruff format --check .
	ruff check .
	mypy
	python -m pytest -q tests/test_layout.py tests/test_docs.py tests/test_readme.py tests/test_api.py tests/config

test:
	python -m pytest

all:
	python -m pytest -m "not drill"

docs:
	python -m tools.api_docs
