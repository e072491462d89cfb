"""The problems: energies E(x, θ) with an argmin over x, to be differentiated with respect to θ.

Four are sums of squares, E = ½‖r(x, θ)‖², so that least-squares solvers can take part. They are written once,
for torch and for JAX: `xp` is `torch` or `jax.numpy`. x is (*B, N, n), θ (*B, m) and r (*B, N, r).
"""

import math
from itertools import pairwise
from typing import Any

Array = Any


class Energy:
    """r(x, θ), and where a search begins: at 0, with a spread of `sigma`."""

    n: int
    m: int
    sigma = 1.0

    def __init__(self, xp: Any):
        self.xp = xp

    def residuals(self, x: Array, theta: Array) -> Array:
        raise NotImplementedError

    def __call__(self, x: Array, theta: Array) -> Array:
        """(*B, N, n), (*B, m) -> (*B, N)"""
        return 0.5 * (self.residuals(x, theta) ** 2).sum(-1)


class Quadratic(Energy):
    """A plan of ten pushes in the plane that brings a point mass to a goal: linear-quadratic control.

    θ: position and velocity at the start and at the goal, and logarithms of their weights and of effort's.
    """

    steps, dt = 10, 0.3
    n, m = 20, 14

    def __init__(self, xp: Any):
        super().__init__(xp)
        dt = self.dt
        dynamics = [[1, 0, dt, 0], [0, 1, 0, dt], [0, 0, 1, 0], [0, 0, 0, 1]]
        self.dynamics = xp.asarray(dynamics, dtype=xp.float64)
        self.push = xp.asarray([[dt * dt / 2, 0], [0, dt * dt / 2], [dt, 0], [0, dt]], dtype=xp.float64)
        # All states at once, as they are linear in the start and the pushes: (40, 4) and (40, 20).
        power = [xp.linalg.matrix_power(self.dynamics, t) for t in range(self.steps + 1)]
        self.powers = xp.concatenate(power[1:])
        effects = [
            [power[t - s] @ self.push if s <= t else 0 * self.push for s in range(self.steps)]
            for t in range(self.steps)
        ]
        self.effects = xp.concatenate([xp.concatenate(row, 1) for row in effects])

    def residuals(self, x: Array, theta: Array) -> Array:
        start, goal, weights = theta[..., None, :4], theta[..., None, 4:8], self.scales(theta)[..., None, :]
        states = start @ self.powers.T + x @ self.effects.T
        errors = states.reshape(*states.shape[:-1], self.steps, 4) - goal[..., None, :]
        pushes = x.reshape(*x.shape[:-1], self.steps, 2)
        both = self.xp.concatenate([errors, pushes], -1) * weights[..., None, :]
        return both.reshape(*x.shape[:-1], self.steps * 6)

    def scales(self, theta: Array) -> Array:
        """Square roots of the weights of position, velocity and push."""
        return self.xp.exp(0.5 * theta[..., 8:])


class Multimodal(Energy):
    """A bowl with six waves across it, in the plane: some five minima, of which one is the lowest.

    θ: the bowl's centre, and the logarithm of the height and the phase of every wave.
    """

    n, m = 2, 14
    sigma = 2.0
    frequency, waves, curvature = 4.0, 6, 0.5

    def __init__(self, xp: Any):
        super().__init__(xp)
        angles = [math.pi * i / self.waves for i in range(self.waves)]
        directions = [
            [self.frequency * math.cos(angle), self.frequency * math.sin(angle)] for angle in angles
        ]
        self.directions = xp.asarray(directions, dtype=xp.float64)

    def residuals(self, x: Array, theta: Array) -> Array:
        centre, height, phase = (theta[..., None, part] for part in (slice(2), slice(2, 8), slice(8, 14)))
        # ½(2√h cos(a/2))² = h (1 + cos a): a wave, and a square.
        waves = 2 * self.xp.exp(height / 2) * self.xp.cos((x @ self.directions.T + phase) / 2)
        return self.xp.concatenate([self.curvature**0.5 * (x - centre), waves], -1)


class Pendulum(Energy):
    """Ten torques that bring a pendulum upright, by a network that has learned how it moves.

    θ: the state at the start (cosine and sine of the angle, angular velocity) and the network's weights.
    """

    steps, hidden = 10, 16
    sigma = 5.0
    n, m = 10, 3 + 5 * 16 + 16 * 3 + 3
    weights = (1.0, 1.0, 0.3, 0.3)  # of the residuals: cosine − 1, sine, angular velocity, torque

    def residuals(self, x: Array, theta: Array) -> Array:
        xp = self.xp
        state = theta[..., None, :3] + 0 * x[..., :1]
        found = []
        for t in range(self.steps):
            torque = x[..., t : t + 1]
            state = self.model(state, torque, theta[..., 3:])
            found += [state[..., :1] - 1, state[..., 1:2], self.weights[2] * state[..., 2:]]
            found += [self.weights[3] * torque]
        return xp.concatenate(found, -1)

    def model(self, state: Array, torque: Array, weights: Array) -> Array:
        """(*B, N, 3), (*B, N, 1), (*B, 131) -> (*B, N, 3)"""
        into, out = layers(weights, (4, self.hidden, 3))
        hidden = self.xp.tanh(self.xp.concatenate([state, torque], -1) @ into[0] + into[1])
        return state + hidden @ out[0] + out[1]


class Regression(Energy):
    """A label y for an input, where a learned energy E(input, y) is lowest; a weak pull to 0 keeps it there.

    θ: the input, and the weights of the network.
    """

    hidden, outputs = 32, 8
    n, m = 1, 1 + 3 * 32 + 33 * 8

    def residuals(self, x: Array, theta: Array) -> Array:
        into, out = layers(theta[..., 1:], (2, self.hidden, self.outputs))
        inputs = theta[..., None, :1] + 0 * x
        hidden = self.xp.tanh(self.xp.concatenate([inputs, x], -1) @ into[0] + into[1])
        return self.xp.concatenate([hidden @ out[0] + out[1], 0.1 * x], -1)


class Projection:
    """The point of {0 ≤ x ≤ c, Σx = 1} nearest to θ, by an entropy: c · lml(θ, 1/c), n = 1000.

    argmin −⟨θ, x⟩ − c Σ H(x/c), with H(p) = −p log p − (1 − p) log(1 − p). Not a sum of squares.
    """

    n = m = 1000
    k = 50
    c = 1 / 50

    def __init__(self, xp: Any):
        self.xp = xp

    def __call__(self, x: Array, theta: Array) -> Array:
        p = self.xp.clip(x / self.c, 1e-300, 1.0)
        q = self.xp.clip(1 - x / self.c, 1e-300, 1.0)
        entropy = -(p * self.xp.log(p) + q * self.xp.log(q)).sum(-1)
        return -(theta[..., None, :] * x).sum(-1) - self.c * entropy


ENERGIES: dict[str, type[Energy] | type[Projection]] = {
    "quadratic": Quadratic,
    "multimodal": Multimodal,
    "projection": Projection,
    "pendulum": Pendulum,
    "regression": Regression,
}


def layers(weights: Array, sizes: tuple[int, ...]) -> list[tuple[Array, Array]]:
    """Matrices (*B, in, out) and biases (*B, 1, out) of a network, from its weights (*B, m) in a row."""
    found, at = [], 0
    for wide, narrow in pairwise(sizes):
        matrix = weights[..., at : at + wide * narrow].reshape(*weights.shape[:-1], wide, narrow)
        at += wide * narrow
        found.append((matrix, weights[..., None, at : at + narrow]))
        at += narrow
    return found
