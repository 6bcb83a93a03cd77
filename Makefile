.PHONY: check test slow docs

check:
	ruff format --check .
	ruff check .
	mypy
	python -m pytest -q tests/test_layout.py tests/test_docs.py tests/test_readme.py tests/test_api.py tests/config

test:
	python -m pytest

slow:
	python -m pytest -m "slow and not drill"

docs:
	python -m tools.api_docs
