# mypy: allow-untyped-defs
"""The dual of the LML projection for a row in the registers of one Triton program.

As in `native.cpp`: smooth rows by Newton's method from their moments, others from the threshold of the hard
top-k (`from_threshold` in `dcem.topk.dual`), without a digit cancelling.
"""

import triton
import triton.language as tl


@triton.jit
def solve(x, good, count, k, mean, std, inv, SMALL: tl.constexpr):
    """z = inv x + ν with Σ σ(z) = k over the `good` entries of x, `count` of them, with this mean and std.

    +inf for all of them if there are no more than k, and -inf for the others.
    """
    everything = k >= count
    kept = tl.where(everything, 0.5 * count, k)
    z, solved = _from_moments(x, good, count, kept, mean, std, inv, SMALL)
    if not (solved | everything):
        z = _from_threshold(x, good, kept, inv, SMALL)
    return tl.where(good, tl.where(everything, float("inf"), z), float("-inf"))


@triton.jit
def _from_moments(x, good, count, k, mean, std, inv, SMALL: tl.constexpr):
    """Newton's method on logit(mean σ(a + ν)); is a row too steep for it, the second output is False."""
    a = tl.where(good, x - mean, 0.0) * inv
    target = tl.log(k / (count - k))
    # For Gaussian a, E σ(a + ν) is close to σ(ν / sqrt(1 + π var / 8)).
    nu = target * tl.sqrt(1.0 + 0.39269908169872414 * (std * inv) * (std * inv))
    smooth = std * inv <= 4.0
    going = smooth
    close = count < 0.0
    iteration = 0
    while going:
        y = tl.where(good, tl.sigmoid(a + nu), 0.0)
        m = tl.sum(y, 0) / count
        slope = m - tl.sum(y * y, 0) / count
        smooth = (m < 1.0) & (slope > m * 0.0625)  # below, rounding of Σ y costs ν its digits
        step = (tl.log(m / (1.0 - m)) - target) * m * (1.0 - m) / slope
        nu = tl.where(smooth, nu - step, nu)
        close = tl.abs(step) <= SMALL
        iteration += 1
        going = smooth & (tl.abs(step) > SMALL) & (iteration < 7)
    return a + nu, smooth & close


@triton.jit
def _from_threshold(x, good, k, inv, SMALL: tl.constexpr):
    """Newton's method on log Σ (1 - h) σ(z) - log Σ h σ(-z), with h the hard top-k."""
    first = tl.ceil(k)
    upper = nth_largest(x, good, first)
    rank = tl.sum((good & (x >= upper)).to(x.dtype), 0)
    below = tl.max(tl.where(good & (x < upper), x, float("-inf")), 0)
    # The largest entry that is left out, fully or partly.
    lower = tl.where(first == k, tl.where(rank > first, upper, below), upper)
    above = good & (x > lower)
    tied = good & (x == lower)
    share = (k - tl.sum(above.to(x.dtype), 0)) / tl.sum(tied.to(x.dtype), 0)
    h = tl.where(above, 1.0, tl.where(tied, share, 0.0))
    half = (upper - lower) * 0.5 * inv
    distance = tl.abs(x - tl.where(above, upper, lower)) * inv
    near = tl.where(good, tl.exp(-distance), 0.0)
    nu = 0.0 * k
    going = k >= 0.0
    iteration = 0
    while going:
        r = 1.0 / (1.0 + near * tl.exp(nu - half))
        q = 1.0 / (1.0 + near * tl.exp(-nu - half))
        got = (1.0 - h) * near * r
        lacks = h * near * q
        total, missing = tl.sum(got, 0), tl.sum(lacks, 0)
        slope = tl.sum(got * r, 0) / total + tl.sum(lacks * q, 0) / missing
        step = (tl.log(total) - tl.log(missing) + 2.0 * nu) / slope
        nu -= step
        iteration += 1
        going = (tl.abs(step) > SMALL) & (iteration < 8)
    return nu + tl.where(above, half + distance, -half - distance)


@triton.jit
def nth_largest(x, good, n):
    """The n-th largest of the good entries, of which there are as many."""
    # Integer keys in the order of the numbers: their bits, flipped if negative. Excluded entries get key 0.
    BITS: tl.constexpr = x.dtype.primitive_bitwidth
    bits = x.to(tl.uint64 if BITS == 64 else tl.uint32, bitcast=True)
    top = tl.full((), 1, bits.dtype) << (BITS - 1)
    key = tl.where(good, tl.where(bits >= top, ~bits, bits | top), 0).to(bits.dtype)
    # Bit by bit: the largest number that enough keys reach.
    last = tl.full((), 0, bits.dtype)
    for place in range(BITS):
        candidate = last | (top >> place)
        last = tl.where(tl.sum((key >= candidate).to(tl.int32), 0) >= n, candidate, last)
    return tl.max(tl.where(good & (key == last), x, float("-inf")), 0)
