"""Importers of trained models from other codebases."""
