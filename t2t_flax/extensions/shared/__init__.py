"""What several extensions use and the core does not, by subject. Each part serves at least two, which a test holds."""
