"""What learning from experience needs besides a model and a planner."""
