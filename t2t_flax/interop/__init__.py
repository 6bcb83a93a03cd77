"""Trained models of other codebases as a configuration, parameters and vocabularies of ours."""
