"""The experiments of the differentiable cross-entropy method, and what goes beyond them, as commands."""
