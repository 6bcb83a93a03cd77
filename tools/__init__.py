"""Programs for maintainers: what is generated and committed is made here."""
