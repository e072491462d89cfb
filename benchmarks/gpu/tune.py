# ruff: noqa
"""Decides between kernel variants on a GPU, section by section; to be deleted once they are decided."""

"""First measurements of what was written without a GPU. `tune.py SECTION`, sections: team shapes plan search update.

Each section prints a short table; a section that hangs is killed by the caller's timeout.
"""

import statistics, sys, time
import torch, dcem
from dcem.control import rollout
from dcem.models import RSSM, RSSMConfig, multistep_loss
import dcem.models.rssm_triton as R
from dcem.models.rssm_triton import FusedRollout, Shape

torch.manual_seed(0)
T0 = time.perf_counter()


def say(*a):
    print(f"[{time.perf_counter() - T0:5.1f}s]", *a, flush=True)


def us(f, n=60):
    for _ in range(5):
        f()
    e = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(n)]
    for a, b in e:
        a.record()
        f()
        b.record()
    torch.cuda.synchronize()
    return 1e3 * statistics.median(a.elapsed_time(b) for a, b in e)


def graph(f):
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        for _ in range(3):
            f()
    torch.cuda.current_stream().wait_stream(s)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        f()
    return g.replay


def model(members=1, **kw):
    kw = (
        dict(
            activation="gelu",
            residual=True,
            predict_std=False,
            sample=False,
            loss="mse",
            members=members,
            pessimism=0.5 if members > 1 else 0.0,
        )
        | kw
    )
    return RSSM(17, 6, RSSMConfig(**kw)).cuda().requires_grad_(False)


def problem(m, E, N, H=12):
    st = m.observe(
        m.initial(torch.randn(E, 17, device="cuda")),
        torch.randn(E, 6, device="cuda"),
        torch.randn(E, 17, device="cuda"),
    )
    return st, 2 * torch.rand(E, N, H, 6, device="cuda") - 1


def error(m, f, st, a):
    ref = rollout(m, st.unsqueeze(1).expand(*a.shape[:2], -1), a)
    got = f.sequence_cost(st, a)
    return ((got - ref).norm() / ref.norm()).item()


_shape = R._shape


def use(shape):
    R._shape = (lambda rows, pad: shape) if shape else _shape


TEAMS = [
    Shape(t, b, 0, w, 2, True, tag)
    for tag in (False, True)
    for t, b, w in ((16, 64, 8), (32, 64, 8), (16, 32, 4))
]
SOLO = [
    Shape(16, 32, 64, 4, 3),
    Shape(16, 32, 128, 4, 3),
    Shape(32, 32, 64, 4, 3),
    Shape(32, 64, 64, 8, 2),
    Shape(64, 32, 64, 4, 2),
]


def name(s):
    return f"{'T' + 'ct'[s.tagged] if s.team else 'S'}{s.tile}/{s.block}/{s.block2}/{s.warps}/{s.stages}"


def team():
    """Does it run, is it right, is it the same every time?"""
    for s in TEAMS:
        use(s)
        for members, E, N in ((1, 1, 100), (1, 1, 1000), (3, 2, 333), (1, 4, 1000)):
            m = model(members)
            f = FusedRollout(m)
            st, a = problem(m, E, N)
            err = error(m, f, st, a)
            first = f.sequence_cost(st, a)
            same = all(torch.equal(first, f.sequence_cost(st, a)) for _ in range(100))
            say(
                name(s),
                f"members {members} E {E} N {N}: error {err:.1e} {'ok' if err < 1e-3 else 'WRONG'} same {same}",
            )
    # beside another stream that keeps the device busy
    m = model()
    f = FusedRollout(m)
    st, a = problem(m, 1, 1000)
    side = torch.cuda.Stream()
    x = torch.randn(4096, 4096, device="cuda")
    for s in TEAMS:
        use(s)
        first = f.sequence_cost(st, a)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            for _ in range(60):
                x = (x @ x).clamp_(-1, 1)
        same = all(torch.equal(first, f.sequence_cost(st, a)) for _ in range(100))
        torch.cuda.synchronize()
        say(name(s), "beside other work: same", same)


def shapes():
    """µs of one rollout with rewards and costs, as a graph."""
    for members in (1, 3):
        m = model(members)
        f = FusedRollout(m)
        for rows in (100, 400, 1000, 1600, 2100, 3200, 4200):
            st, a = problem(m, 1, rows)
            out = []
            for s in TEAMS + SOLO:
                tiles = -(-rows // s.tile) * members
                if not s.team and tiles > 3 * 132 or s.team and tiles * 4 > 6 * 132:
                    continue
                use(s)
                out.append((us(graph(lambda: f.sequence_cost(st, a))), name(s)))
            out.sort()
            say(f"members {members} rows {rows}: " + "  ".join(f"{n} {t:.0f}" for t, n in out))


def planner(imagine, n, k, latent):
    dec = dcem.Decoder(16, 12, 6, hidden=(200, 200)).cuda().requires_grad_(False) if latent else None
    s = dcem.DCEM(
        n_samples=n,
        n_elite=k,
        n_iters=10,
        tau=1.0 if latent else 0.0,
        distribution=dcem.Gaussian(sigma=0.5 if latent else 1.0),
    )
    mpc = dcem.MPC(imagine, 12, solver=s, decoder=dec, action_dim=6).cuda()
    return lambda st: mpc(st, cost=False).action


class Nothing:
    def step(self, s, a):
        raise NotImplementedError

    def sequence_cost(self, s, a, *_):
        return a[..., 0, 0] + 0.0


@torch.no_grad()
def plan():
    """ms of a captured plan, with and without teams."""
    for members, E, N, k, latent in (
        (1, 1, 1000, 100, False),
        (1, 1, 100, 10, True),
        (1, 16, 1000, 100, False),
        (1, 16, 100, 10, True),
        (3, 1, 400, 40, False),
        (3, 16, 400, 40, False),
    ):
        m = model(members)
        f = FusedRollout(m)
        st = m.initial(torch.randn(E, 17, device="cuda"))
        out = []
        rows = E * N * members
        options = [("solo", None)] + [
            (name(s), s) for s in TEAMS if -(-E * N // s.tile) * members * 4 <= 6 * 132
        ]
        for label, s in options:
            R.TEAM_ROWS = 0
            use(s)
            p = planner(f, N, k, latent)
            out.append(f"{label} {us(graph(lambda: p(st)), 30) / 1e3:.3f}")
        p = planner(Nothing(), N, k, latent)
        alone = us(graph(lambda: p(st)), 30) / 1e3
        say(
            f"E {E} N {N} members {members} latent {latent}: "
            + "  ".join(out)
            + f"  | search alone {alone:.3f}"
        )


@torch.no_grad()
def search():
    """Kernels of one iteration of the search alone."""
    from torch.profiler import ProfilerActivity, profile

    for E, N, k, latent in ((1, 1000, 100, False), (1, 100, 10, True), (16, 1000, 100, False)):
        st = torch.randn(E, 217, device="cuda")
        p = planner(Nothing(), N, k, latent)
        g = graph(lambda: p(st))
        t = us(g)
        with profile(activities=[ProfilerActivity.CUDA]) as prof:
            p(st)
            torch.cuda.synchronize()
        rows = sorted(
            ((e.device_time_total, e.count, e.key) for e in prof.key_averages() if e.device_time_total > 0),
            reverse=True,
        )
        say(
            f"E {E} N {N} latent {latent}: {t:.0f} us a plan, {sum(r[1] for r in rows)} kernels, {sum(r[0] for r in rows):.0f} us in kernels"
        )
        for d, c, key in rows[:14]:
            print(f"      {d / c:6.1f} us x {c:4d}  {key[:110]}")


def update():
    """Captured loss and gradients: what each part of the fast path gives; then its slowest kernels."""
    import dcem.models.unroll as U
    from torch.profiler import ProfilerActivity, profile

    fused, split = U.fused, U._weight_gradient
    whole = lambda x, grad: x.mT @ grad
    obs, act, rew = (
        torch.randn(50, 51, 17, device="cuda"),
        torch.rand(50, 50, 6, device="cuda"),
        torch.rand(50, 50, device="cuda"),
    )
    for members, kw in ((1, {}), (3, {})):
        m = model(members, **kw).requires_grad_(True)
        ps = list(m.parameters())

        def run(fast=True):
            loss, _ = multistep_loss(m, obs, act, rew, fast=fast)
            return torch.autograd.grad(loss, ps)

        for tf in (False, True):
            torch.backends.cuda.matmul.allow_tf32 = tf
            plain_grads = run(False)
            out = [f"plain {us(graph(lambda: run(False)), 20) / 1e3:.2f}"]
            for label, k, w in (
                ("fast", fused, split),
                ("no kernels", None, split),
                ("no parts", fused, whole),
                ("neither", None, whole),
            ):
                U.fused, U._weight_gradient = k, w
                err = max(((a - b).norm() / b.norm()).item() for a, b in zip(run(), plain_grads))
                out.append(f"{label} {us(graph(run), 20) / 1e3:.2f} ({err:.0e})")
            U.fused, U._weight_gradient = fused, split
            say(f"members {members} tf32 {tf}, ms (gradient's distance from plain): " + "  ".join(out))
            with profile(activities=[ProfilerActivity.CUDA]) as prof:
                run()
                torch.cuda.synchronize()
            rows = sorted(
                (
                    (e.device_time_total, e.count, e.key)
                    for e in prof.key_averages()
                    if e.device_time_total > 0
                ),
                reverse=True,
            )
            print(f"    {sum(r[1] for r in rows)} kernels, {sum(r[0] for r in rows) / 1e3:.2f} ms in them")
            for d, c, key in rows[:12]:
                print(f"      {d / 1e3:6.2f} ms = {d / c:6.1f} us x {c:4d}  {key[:110]}")
    torch.backends.cuda.matmul.allow_tf32 = False


if __name__ == "__main__":
    with torch.no_grad() if sys.argv[1] in ("team", "shapes") else torch.enable_grad():
        globals()[sys.argv[1]]()
    say("done")
