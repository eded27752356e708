# Every target makes .venv on its first run (minutes) and reuses it afterwards.
.PHONY: demo test check clean

demo:
	@scripts/setup demo
	@.venv/bin/python scripts/demo.py

test:
	@scripts/test

check:
	@scripts/check

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist build
