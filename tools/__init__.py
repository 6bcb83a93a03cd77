"""Programs for maintainers, which make the generated files that are committed."""
