"""Models for other programs, and of other toolkits: export and import."""
