"""What trainings share: gradient steps, seeds side by side, where the time goes."""
