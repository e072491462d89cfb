"""The world model, its multi-step loss, and the fast unrolling against the plain one."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.distributions import Normal

from dcem_lab.suite.rssm import RSSM, RSSMConfig, multistep_loss
from dcem_lab.suite.rssm.fast.unroll import Filter, OpenLoop, fast_unroll
from dcem_lab.suite.rssm.rows import blocks

X, U = 5, 2
TINY = {"hidden": 7, "width": 6, "distance": 4}
RECIPES = {
    "paper": RSSMConfig(**TINY),
    "means": RSSMConfig(**TINY, sample=False, activation="elu", residual=True),
    "robust": RSSMConfig(
        **TINY, activation="gelu", residual=True, normalize=True, angles=(1,), predict_std=False,
        sample=False, loss="rmse", reward_weight=2.0, members=3, pessimism=0.5,
    ),
    "noisy": RSSMConfig(**TINY, predict_std=False, std=0.3, loss="mse", members=2, normalize=True),
    "noisy residual": RSSMConfig(**TINY, members=2, residual=True),
    "no memory": RSSMConfig(**TINY, members=2, residual=True, memory=False),
    "linear heads": RSSMConfig(**TINY, layers=0, members=2),
    "ending": RSSMConfig(**TINY, members=2, pessimism=0.5, termination=True, scale_rewards=True),
}  # fmt: skip


def make(config: RSSMConfig, seed: int = 0) -> RSSM:
    return RSSM(X, U, config, torch.Generator().manual_seed(seed)).double()


def chunks(count: int = 3, length: int = 9, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    shapes = [(count, length + 1, X), (count, length, U), (count, length)]
    obs, actions, rewards = (torch.randn(s, generator=g, dtype=torch.float64) for s in shapes)
    return obs, actions, rewards


def member(model: RSSM, m: int) -> RSSM:
    """The m-th member, as a model of its own."""
    alone = RSSM(X, U, dataclasses.replace(model.config, members=1)).double()
    parameters = {name for name, _ in model.named_parameters()}
    weights = {k: v[m : m + 1] if k in parameters else v for k, v in model.state_dict().items()}
    alone.load_state_dict(weights)
    return alone


@pytest.fixture(params=RECIPES)
def model(request) -> RSSM:
    model = make(RECIPES[request.param])
    model.normalizer.update(chunks()[0])
    return model


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_any_leading_dimensions_and_batched_is_looped(model, batch):
    obs, next_obs = torch.randn(2, *batch, X, dtype=torch.float64)
    action = torch.randn(*batch, U, dtype=torch.float64)
    noise = torch.randn(*batch, model.config.members * model.features, dtype=torch.float64)
    state = model.observe(model.initial(obs), action, next_obs)
    assert state.shape == (*batch, model.state_dim)
    following, cost = model.step(state, action, noise)
    assert following.shape == state.shape
    assert cost.shape == batch
    assert model.decode(following).shape == obs.shape

    rows = torch.zeros(batch).flatten().shape[0]
    for i in range(rows):
        s = model.observe(
            model.initial(obs.reshape(-1, X)[i]), action.reshape(-1, U)[i], next_obs.reshape(-1, X)[i]
        )
        n, c = model.step(s, action.reshape(-1, U)[i], noise.reshape(rows, -1)[i])
        torch.testing.assert_close(s, state.reshape(rows, -1)[i])
        torch.testing.assert_close(n, following.reshape(rows, -1)[i])
        torch.testing.assert_close(c, cost.reshape(rows)[i])


def test_first_state_is_zero_hidden_and_the_features_seen(model):
    obs = torch.randn(4, X, dtype=torch.float64)
    state = model.initial(obs).unflatten(-1, (model.config.members, -1))
    expected = model.normalizer.encode(obs).unsqueeze(1).expand(-1, model.config.members, -1)
    _, x, going_on = state.tensor_split((model.config.hidden, model.config.hidden + model.features), -1)
    assert torch.equal(x, expected)
    assert (going_on == 1).all()
    assert going_on.shape[-1] == model.config.termination
    assert not state[..., : model.config.hidden].any()


def test_observing_moves_the_hidden_state_as_a_step_does(model):
    obs, action = torch.randn(4, X, dtype=torch.float64), torch.randn(4, U, dtype=torch.float64)
    H, shape = model.config.hidden, (4, model.config.members, -1)
    observed = model.observe(model.initial(obs), action, obs)
    imagined, _ = model.step(model.initial(obs), action)
    torch.testing.assert_close(observed.reshape(shape)[..., :H], imagined.reshape(shape)[..., :H])
    torch.testing.assert_close(observed.reshape(shape)[..., H:], model.initial(obs).reshape(shape)[..., H:])


def test_an_ensemble_is_its_members(model):
    M = model.config.members
    obs, action = torch.randn(4, X, dtype=torch.float64), torch.randn(4, U, dtype=torch.float64)
    state, cost = model.step(model.initial(obs), action)
    alone = [member(model, m) for m in range(M)]
    steps = [one.step(one.initial(obs), action) for one in alone]
    torch.testing.assert_close(state, torch.cat([s for s, _ in steps], dim=-1))
    rewards = -torch.stack([c for _, c in steps])
    expected = rewards.mean(0) - model.config.pessimism * rewards.std(0, correction=0)
    torch.testing.assert_close(cost, -expected)


def test_an_ensembles_members_learn_as_if_alone():
    model = make(RECIPES["robust"])
    model.normalizer.update(chunks()[0])
    loss, _ = multistep_loss(model, *chunks())
    loss.backward()
    losses = []
    for m in range(model.config.members):
        alone = member(model, m)
        losses.append(multistep_loss(alone, *chunks())[0])
        losses[-1].backward()
        for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(p.grad[m], q.grad[0], msg=lambda text, name=name: f"{name}: {text}")
    torch.testing.assert_close(loss, torch.stack(losses).sum())


def test_members_that_agree_have_finite_gradients():
    model = make(RECIPES["robust"])
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p[:1].expand_as(p))
    action = torch.zeros(4, U, dtype=torch.float64, requires_grad=True)
    _, cost = model.step(model.initial(torch.randn(4, X, dtype=torch.float64)), action)
    cost.sum().backward()
    assert action.grad.isfinite().all()


def loss_and_gradients(model, fast, data=None):
    model.zero_grad()
    loss, metrics = multistep_loss(
        model, *(data or chunks()), generator=torch.Generator().manual_seed(3), fast=fast
    )
    loss.backward()
    return loss.detach(), metrics, {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("length", [4, 9])
def test_fast_unrolling_is_the_plain_one(model, length):
    data = chunks(length=length)
    fast, plain = (loss_and_gradients(model, fast, data) for fast in (True, False))
    torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-10)
    assert all(g.abs().max() > 1e-6 for g in plain[2].values())


def test_fast_unrolling_reads_nothing_it_has_not_written(model):
    expected = loss_and_gradients(model, fast=True)
    torch.use_deterministic_algorithms(True)  # new memory is then filled with NaN
    try:
        torch.testing.assert_close(loss_and_gradients(model, fast=True), expected)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("recipe", RECIPES)
def test_half_precision_is_close(recipe):
    """Although these gradients, as of a thousand times as many chunks, are too small for it."""
    model = make(dataclasses.replace(RECIPES[recipe], hidden=24, width=16)).float()
    obs, *rest = (x.float() for x in chunks(count=64, length=40))
    model.normalizer.update(obs)
    found = []
    for dtype in (None, torch.float16):
        loss, _ = multistep_loss(model, obs, *rest, generator=torch.Generator().manual_seed(0), dtype=dtype)
        found.append((loss, *torch.autograd.grad(loss / 1000, list(model.parameters()))))
    for exact, half in zip(*found, strict=True):
        assert half.dtype == torch.float32
        assert ((half - exact).norm() / exact.norm()).item() < 0.02


def test_an_outlier_is_within_half_precision():
    model = make(dataclasses.replace(RECIPES["robust"], normalize=False, hidden=24, width=16)).float()
    obs, *rest = (x.float() for x in chunks(count=64, length=40))
    obs[0, 20] = 200.0
    loss, _ = multistep_loss(model, obs, *rest, dtype=torch.float16)
    of_few = torch.autograd.grad(100 * loss, list(model.parameters()))  # as of a hundredth of the chunks
    assert all(g.isfinite().all() for g in of_few)


def test_inference_does_not_stand_in_the_way_of_training():
    model, data = make(RECIPES["means"]), chunks(count=7, length=11)  # a size that nothing else has
    with torch.inference_mode():
        multistep_loss(model, *data)
    multistep_loss(model, *data)[0].backward()


def test_small_changes_are_not_lost_in_half_precision():
    """A prediction is its observation plus a change: the sum keeps more digits than half precision has."""
    model = make(RECIPES["means"]).float()
    x, u = 100 + torch.rand(6, 3, X), torch.zeros(6, 3, U)
    spans = blocks(length=6, chunks=3, distance=4)
    exact, half = (fast_unroll(model, x, u, None, spans, dtype) for dtype in (None, torch.float16))
    assert half.states.dtype == torch.float16
    torch.testing.assert_close(half.x, exact.x, rtol=0, atol=0.01)  # half precision has steps of 0.06 here


def test_filter_gradients():
    model = make(RSSMConfig(hidden=3, width=2, members=2))
    gru = (model.gru.hidden_weight, model.gru.input_weight, model.gru.bias)
    inputs = torch.randn(4, 2, X + U, dtype=torch.float64)
    assert torch.autograd.gradcheck(Filter.apply, (inputs, *gru))


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("predicted", [False, True])
def test_open_loop_gradients(sampled, predicted):
    config = RSSMConfig(hidden=2, width=2, members=2, activation="gelu", residual=True, predict_std=predicted)
    model = make(config)
    spans = blocks(length=3, chunks=1, distance=3)
    g = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=g, dtype=torch.float64)

    hidden, start, actions = random(2, 3, 2).requires_grad_(), random(3, X), random(3, 1, U)
    noise = random(2, spans[-1].stop, X) if sampled else None
    gru = (model.gru.hidden_weight, model.gru.input_weight, model.gru.bias)
    inputs = (hidden, start, actions, noise, *gru, *model.observation_head.in_a_row)
    assert torch.autograd.gradcheck(OpenLoop.apply, (config, spans, *inputs))


@pytest.mark.parametrize("fast", [True, False])
def test_one_step_loss_is_the_one_step_likelihood(fast):
    config = RSSMConfig(hidden=4, width=3, distance=1, sample=False, reward_weight=0.7)
    model = make(config)
    obs, actions, rewards = chunks()
    hidden = torch.zeros(1, len(obs), 4, dtype=torch.float64)
    total = 0
    for t in range(actions.shape[1]):
        hidden = model.gru(torch.cat([obs[:, t], actions[:, t]], -1)[None], hidden)
        mean, raw = model.observation_head(hidden).chunk(2, dim=-1)
        likelihood = Normal(mean, nn.Softplus()(raw) + 0.1).log_prob(obs[:, t + 1]).sum(-1)
        reward = model.reward_head(torch.cat([hidden, mean], -1)).squeeze(-1)
        total = total + (likelihood + 0.7 * Normal(reward, 1).log_prob(rewards[:, t])).mean()
    loss, metrics = multistep_loss(model, obs, actions, rewards, fast=fast)
    torch.testing.assert_close(loss, -total / actions.shape[1])
    torch.testing.assert_close(metrics["loss"], loss.detach())


def test_loss_is_what_a_planner_would_have_imagined():
    model = make(dataclasses.replace(RECIPES["robust"], loss="mse", members=1, distance=3))
    obs, actions, rewards = chunks(count=2, length=5)
    features = model.normalizer.encode(obs)
    filtered = [model.initial(obs[:, 0])]
    for t in range(5):
        filtered.append(model.observe(filtered[-1], actions[:, t], obs[:, t + 1]))
    errors = {d: [] for d in (1, 2, 3)}
    for t in range(5):
        state = filtered[t]
        for d in range(1, min(3, 5 - t) + 1):
            state, cost = model.step(state, actions[:, t + d - 1])
            obs_error = (state[..., 7:] - features[:, t + d]).square().mean(-1)
            errors[d].append(obs_error + 2 * (-cost - rewards[:, t + d - 1]).square())
    expected = torch.stack([torch.stack(e).mean() for e in errors.values()]).mean()
    torch.testing.assert_close(multistep_loss(model, obs, actions, rewards)[0], expected)


def test_sampling_only_comes_from_the_generator():
    model = make(RECIPES["paper"])
    generators = [torch.Generator().manual_seed(seed) for seed in (0, 0, 1)]
    first, again, other = (
        multistep_loss(model, *chunks(), generator=generator)[0] for generator in generators
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    "recipe",
    [
        {"predict_std": False, "sample": False, "loss": "rmse", "residual": True, "normalize": True},
        {"reward_weight": 20.0},
    ],
    ids=["robust", "paper"],
)
def test_learns_a_linear_system(recipe):
    torch.manual_seed(0)
    A = torch.tensor([[0.9, 0.3], [-0.3, 0.9]])
    B = torch.tensor([[0.0], [0.5]])

    def simulate(count, length):
        states, actions = [torch.rand(count, 2) * 3 - 1.5], torch.rand(count, length, 1) * 2 - 1
        for t in range(length):
            states.append(states[-1] @ A.T + actions[:, t] @ B.T)
        obs = torch.stack(states, dim=1)
        return obs, actions, 1 - 0.5 * obs[:, 1:].square().sum(-1)

    model = RSSM(2, 1, RSSMConfig(hidden=24, width=32, distance=5, **recipe))
    model.normalizer.update(simulate(200, 8)[0])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(500):
        optimizer.zero_grad()
        loss, _ = multistep_loss(model, *simulate(32, 8))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1000)
        optimizer.step()

    with torch.no_grad():
        obs, actions, rewards = simulate(200, 5)
        state = model.initial(obs[:, 0])
        for t in range(5):
            state, cost = model.step(state, actions[:, t])
            assert (model.decode(state) - obs[:, t + 1]).square().mean().sqrt() < 0.1 * obs.std()
            assert (-cost - rewards[:, t]).square().mean().sqrt() < 0.3 * rewards.std()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"members": 0}, "members must be at least 1, got 0"),
        ({"pessimism": -1.0}, "pessimism must be at least 0, got -1.0"),
        ({"std": 0.0}, "std must be above 0, got 0.0"),
        ({"activation": "tanh"}, "activation must be one of .*, got 'tanh'"),
        ({"loss": "mae"}, "loss must be one of .*, got 'mae'"),
        ({"loss": "mse"}, "predict_std must be False unless loss is 'nll', which is 'mse', got True"),
    ],
)
def test_config_errors(change, message):
    with pytest.raises(ValueError, match=message):
        RSSMConfig(**change)


def test_config_angles_may_come_as_a_list():
    assert hash(RSSMConfig(angles=[2])) == hash(RSSMConfig(angles=(2,)))


def test_shape_errors():
    model = make(RECIPES["paper"])
    obs, actions, rewards = chunks()
    state = model.initial(obs[:, 0])
    with pytest.raises(ValueError, match=r"state must end in 12 numbers, got shape \(3, 11\)"):
        model.step(state[:, 1:], actions[:, 0])
    with pytest.raises(ValueError, match=r"action must have shape \(3, 2\), got \(2, 2\)"):
        model.step(state, actions[:2, 0])
    with pytest.raises(ValueError, match=r"obs must have shape \(B, L \+ 1, 5\), got \(3, 10, 4\)"):
        multistep_loss(model, obs[..., 1:], actions, rewards)
    with pytest.raises(ValueError, match=r"rewards must have shape \(3, 9\) beside these obs, got \(3, 8\)"):
        multistep_loss(model, obs, actions, rewards[:, 1:])
    with pytest.raises(ValueError, match=r"obs must hold at least distance=4 steps, got 3"):
        multistep_loss(model, obs[:, :4], actions[:, :3], rewards[:, :3])
    with pytest.raises(
        ValueError, match=r"dtype must be None, or float16 for fast steps, got torch.bfloat16"
    ):
        multistep_loss(model, obs, actions, rewards, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"dtype must be None, or float16 for fast steps"):
        multistep_loss(model, obs, actions, rewards, dtype=torch.float16, fast=False)
    with pytest.raises(ValueError, match=r"obs must be in single or double precision"):
        multistep_loss(model, obs.half(), actions, rewards)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("fast", [True, False])
def test_an_update_can_be_captured(model, fast):
    model = model.cuda()
    data = [x.cuda() for x in chunks()]
    model.config = dataclasses.replace(model.config, sample=False)
    expected = loss_and_gradients_on_device(model, data, fast)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = loss_and_gradients_on_device(model, data, fast)
    graph.replay()
    torch.testing.assert_close(captured, expected)


def loss_and_gradients_on_device(model, data, fast):
    loss, metrics = multistep_loss(model, *data, fast=fast)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    # A graph that lives on ties the parameters to the stream it was made on, and no other can be captured.
    return loss.detach(), metrics, gradients
