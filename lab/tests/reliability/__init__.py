"""Measurements of what lab/docs/reliability.md promises: a function each, that takes how often to try."""
