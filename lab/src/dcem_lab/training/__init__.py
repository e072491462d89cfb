"""What trainings share: gradient steps, parallel seeds, timing."""
