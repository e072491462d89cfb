"""Learning an embedded control space (Algorithm 2)."""

from torch import Generator, Tensor

from dcem.control.mpc import MPC


def embedding_loss(mpc: MPC, state: Tensor, generator: Generator | None = None) -> Tensor:
    """The cost C_θ(ẑ) of a controller with a decoder, averaged over states (*B, s).

    Its gradient reaches the decoder directly, through the actions that ẑ decodes to, and through
    ẑ = argmin_z C_θ(z), whose search used the decoder. With `backward=Detach()` in the controller (and a
    solver at τ = 0) the second path is cut: that is the paper's τ = 0, min-differentiation.

        loss = embedding_loss(mpc, initial_states)
        loss.backward()
        optimizer.step()
    """
    cost = mpc(state, generator=generator).cost
    assert cost is not None
    return cost.mean()
