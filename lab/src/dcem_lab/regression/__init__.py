"""Energy-based regression (Section 5.1 of the paper)."""
