"""What is measured: tables of cases (rows of a problem) and contenders (who solves it)."""

from dataclasses import dataclass, field
from typing import Any

Settings = dict[str, Any]


@dataclass(frozen=True)
class Case:
    label: str
    problem: Settings  # the name and settings of a class in problems.py


@dataclass(frozen=True)
class Contender:
    label: str
    method: str  # a method of the adapter in peers/
    environment: str = "ours"
    options: Settings = field(default_factory=dict)
    backward: bool = True  # False: it has no gradient
    judged: bool = True  # False: its output is not an answer to the problem
    exact: Settings | None = None  # options of the same method that make its gradient exact

    def request(self, case: Case) -> Settings:
        return {"method": self.method, "problem": case.problem, "options": self.options}


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    note: str
    cases: tuple[Case, ...]
    contenders: tuple[Contender, ...]  # ratios are to the first
    differences: bool = False  # check gradients against finite differences
    compare: bool = False  # compare gradients with the first contender's
    memory: bool = True


def _quadratic(batch: int) -> Case:
    return Case(f"quadratic, B={batch}", {"name": "Quadratic", "batch": batch})


def _network(batch: int) -> Case:
    return Case(f"network, B={batch}", {"name": "Network", "batch": batch})


def _lml(batch: int, n: int, k: int) -> Case:
    return Case(f"{batch}×{n}, k={k}", {"name": "TopK", "batch": batch, "n": n, "k": k})


def _selection(batch: int, n: int, k: int, ess: float) -> Case:
    problem = {"name": "Selection", "batch": batch, "n": n, "k": k, "ess": ess}
    return Case(f"{batch}×{n}, k={k}", problem)


def _operator(label: str, operator: str, environment: str = "ours") -> Contender:
    return Contender(label, "selection", environment, {"operator": operator})


def _modes(tau: float) -> tuple[Contender, ...]:
    def mode(*spec: str | float) -> Contender:
        label = f"{spec[0]}({', '.join(map(str, spec[1:]))})"
        return Contender(label, "dcem", options={"tau": tau, "mode": spec}, backward=spec[0] != "Detach")

    shares = (mode("Prune", share) for share in (0.5, 0.2, 0.1))
    return (
        mode("Unroll"),
        mode("Checkpoint"),
        mode("Truncate", 3),
        mode("Truncate", 1),
        *shares,
        mode("Implicit", 0.1),
        mode("Detach"),
    )


TABLES = (
    Table(
        "lml",
        "The LML projection",
        "Rows of standard normal scores, τ=1, float32. `torch.topk` solves the hard problem: the floor.",
        (_lml(1, 100, 10), _lml(16, 1000, 100), _lml(256, 100, 10), _lml(1024, 1000, 100)),
        (
            Contender("dcem.lml", "lml"),
            Contender("theseus LML", "lml", "theseus"),
            Contender("torch.topk", "topk", judged=False),
        ),
    ),
    Table(
        "topk",
        "Soft top-k operators",
        "Rows of standard normal scores, each operator at the temperature where 15 samples count in effect. "
        "SOFT, LapSum and the Euclidean projection are ours, from their papers' formulas, in torch.",
        (_selection(1, 100, 10, 15), _selection(64, 100, 10, 15)),
        (
            _operator("dcem.lml", "lml"),
            _operator("SOFT top-k, 200 iterations", "SOFT"),
            _operator("LapSum", "LapSum"),
            _operator("Euclidean projection", "Euclidean"),
            _operator("difftopk, bitonic network", "network", "difftopk"),
            _operator("difftopk, SoftSort", "SoftSort", "difftopk"),
        ),
        differences=True,
        memory=False,
    ),
    Table(
        "dcem",
        "Differentiable cross-entropy method",
        "20-dimensional quadratic, N=100, k=10, T=10, τ=1; gradients are to its centre. "
        "theseus stops its bisection at a width of 1e-3, so finite differences see a staircase; "
        "the last column compares its gradient with its own at `lml_eps=1e-12`.",
        (_quadratic(1), _quadratic(64)),
        (
            Contender("dcem.DCEM", "dcem"),
            Contender("dcem.DCEM, compiled", "dcem", options={"compiled": True}),
            Contender("a JAX program", "dcem", "jax_program"),
            Contender("released code", "dcem", "released"),
            Contender("theseus DCEM", "dcem", "theseus", exact={"lml_eps": 1e-12}),
        ),
        differences=True,
    ),
    Table(
        "hard",
        "Cross-entropy method, hard selection",
        "The same quadratic and budget with τ=0, no gradients. The bare objective evaluates as many samples.",
        (_quadratic(1), _quadratic(64)),
        (
            Contender("dcem.DCEM, τ=0", "dcem", options={"tau": 0.0}, backward=False),
            Contender("theseus DCEM, temp=None", "dcem", "theseus", {"temp": None}, backward=False),
            Contender("evotorch CEM", "hard", "evotorch", backward=False),
            Contender("bare objective", "bare", backward=False, judged=False),
        ),
    ),
    Table(
        "control",
        "Planning with a double integrator",
        "One state, 20 steps, N=100 plans, 10 refinements, the same dynamics and costs; the least is 5.0222. "
        "Compare pytorch-mppi's time, not its cost: its weights also charge for control effort, which "
        "cannot be switched off.",
        (Case("double integrator", {"name": "DoubleIntegrator"}),),
        (
            Contender("dcem.MPPI", "mppi", options={"temperature": 0.1}, backward=False),
            Contender(
                "dcem.MPPI, compiled", "mppi", options={"temperature": 0.1, "compiled": True}, backward=False
            ),
            Contender("pytorch-mppi", "mppi", "pytorch_mppi", {"temperature": 0.1}, backward=False),
            Contender(
                "pytorch-mppi, compiled",
                "mppi",
                "pytorch_mppi",
                {"temperature": 0.1, "compiled": True},
                backward=False,
            ),
            Contender("dcem.DCEM, τ=0", "dcem", options={"tau": 0.0}, backward=False),
            Contender("evotorch CEM", "hard", "evotorch", backward=False),
            Contender("bare objective", "bare", backward=False, judged=False),
        ),
    ),
    Table(
        "embedding",
        "One update of a latent action space",
        "The paper's cartpole from one state: 8 latent dimensions, 20 forces, N=100, k=10, T=10, τ=1. "
        "Gradients go to the decoder's weights; the optimiser's step is left out. The bare rollouts decode "
        "as many latent points and roll them out.",
        (Case("latent cartpole", {"name": "Embedding"}),),
        (
            Contender("dcem.MPC", "embedding", judged=False),
            Contender("dcem.MPC, compiled", "embedding", options={"compiled": True}, judged=False),
            Contender("released code", "embedding", "released", judged=False),
            Contender("bare rollouts", "embedding_bare", judged=False),
            Contender("bare rollouts, compiled", "embedding_bare", options={"compiled": True}, judged=False),
        ),
        memory=False,
    ),
    Table(
        "overhead",
        "Overhead over the bare objective",
        "The bare objective evaluates the very samples of a DCEM solve (T=10 times N=100) and, backward, "
        "gives gradients to its parameters and to the samples.",
        (_quadratic(1), _quadratic(64), _network(1), _network(64)),
        (Contender("bare objective", "bare", judged=False), Contender("dcem.DCEM", "dcem")),
    ),
    Table(
        "backward",
        "Ways to differentiate, τ=1",
        "A three-layer network (20 → 128 → 128 → 1), N=100, k=10, T=10; gradients are to its weights, "
        "against those of `Unroll`, with the same noise, over ten draws of it.",
        (_network(64),),
        _modes(1.0),
        compare=True,
    ),
    Table(
        "backward_cold",
        "Ways to differentiate, τ=0.1",
        "The same at a lower temperature, where fewer samples carry weight.",
        (_network(64),),
        _modes(0.1),
        compare=True,
    ),
)
