"""How much every method may search. Chosen on other instances than those of the benchmark."""

# Of every cross-entropy method: n_samples, n_elite and n_iters.
BUDGETS = {
    "quadratic": (200, 20, 40),
    "multimodal": (400, 10, 20),
    "pendulum": (200, 20, 40),
    "regression": (100, 10, 10),
}
# Of every method that follows gradients: 100 steps, and the learning rate of plain steps and of Adam's,
# the best of 1, 0.3, 0.1, 0.03, … by the energy found.
STEPS = 100
PLAIN = {"quadratic": 0.03, "multimodal": 0.03, "projection": 0.01, "pendulum": 0.1, "regression": 0.01}
ADAM = {"quadratic": 0.3, "multimodal": 0.03, "projection": 0.1, "pendulum": 1.0, "regression": 0.1}
FIRST_MULTIPLIER = -4.0  # of the projection: where a search for ν begins
