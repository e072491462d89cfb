"""Measurements of what docs/reliability.md promises: a function each, that takes how often to try."""
