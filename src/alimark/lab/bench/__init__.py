"""Experiments: recipes, stages, metrics, reports."""
