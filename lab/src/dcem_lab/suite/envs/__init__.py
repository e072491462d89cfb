"""Systems to control: differentiable ones, and simulators stepped many at a time."""
