# mypy: allow-untyped-defs
"""The dual of the LML projection for a row in the registers of one Triton program.

As in `native.cpp`: smooth rows by Newton's method from their moments, others from the threshold of the hard
top-k (`from_threshold` in `dcem.topk.dual`), without a digit cancelling.
"""

import triton
import triton.language as tl


@triton.jit
def solve(x, good, count, k, mean, std, inv, SMALL: tl.constexpr):
    """An upper and a lower edge and ν, from which `logits` computes z = inv x + constant with Σ σ(z) = k.

    The sum is over the `good` entries of x, `count` of them, with this mean and std. If there are no more
    than k, ν is +inf. The edges are the entries on either side of the threshold, or both the mean.
    """
    everything = k >= count
    kept = tl.where(everything, 0.5 * count, k)
    upper, lower = mean, mean
    nu, solved = _from_moments(x, good, count, kept, mean, std, inv, SMALL)
    if not (solved | everything):
        upper, lower, nu = _from_threshold(x, good, kept, inv, SMALL)
    return upper, lower, tl.where(everything, float("inf"), nu)


@triton.jit
def logits(x, good, upper, lower, inv, nu):
    """z of the good entries, from what `solve` returned, and -inf for the others.

    There is no entry between the edges, and z is ν halfway. Next to them the differences are exact.
    """
    half = (upper - lower) * 0.5 * inv
    a = tl.where(x > lower, (x - upper) * inv + half, (x - lower) * inv - half)
    # For all or none ν is infinite, and so is a where it overflows.
    z = tl.where(tl.abs(nu) < float("inf"), a + nu, nu)
    return tl.where(good, z, float("-inf"))


@triton.jit
def _from_moments(x, good, count, k, mean, std, inv, SMALL: tl.constexpr):
    """Newton's method on logit(mean σ(a + ν)); is a row too steep for it, the second output is False."""
    a = tl.where(good, x - mean, 0.0) * inv
    target = tl.log(k / (count - k))
    # For Gaussian a, E σ(a + ν) is close to σ(ν / sqrt(1 + π var / 8)).
    nu = target * tl.sqrt(1.0 + 0.39269908169872414 * (std * inv) * (std * inv))
    smooth = std * inv <= 16.0  # not 4, as in `native.cpp`: here the threshold costs more than a few steps
    going = smooth
    close = count < 0.0
    iteration = 0
    while going:
        y = tl.where(good, tl.sigmoid(a + nu), 0.0)
        total, squares = tl.split(tl.sum(tl.join(y, y * y), 0))
        m = total / count
        slope = m - squares / count
        smooth = (m < 1.0) & (slope > m * 0.0625)  # below, rounding of Σ y costs ν its digits
        step = (tl.log(m / (1.0 - m)) - target) * m * (1.0 - m) / slope
        nu = tl.where(smooth, nu - step, nu)
        close = tl.abs(step) <= SMALL
        iteration += 1
        going = smooth & (tl.abs(step) > SMALL) & (iteration < 7)
    return nu, smooth & close


@triton.jit
def _from_threshold(x, good, k, inv, SMALL: tl.constexpr):
    """Newton's method on log Σ (1 - h) σ(z) - log Σ h σ(-z), with h the hard top-k."""
    first = tl.ceil(k)
    upper = nth_largest(x, good, first)
    rank = tl.sum((good & (x >= upper)).to(x.dtype), 0)
    below = tl.max(tl.where(good & (x < upper), x, float("-inf")), 0)
    # The largest entry that is left out, fully or partly.
    lower = tl.where((first == k) & (rank == first), below, upper)
    # Of those equal to it, h has what is left of k; all others have one term, since their h is 0 or 1.
    left = k - tl.sum((good & (x > lower)).to(x.dtype), 0)
    tied = tl.sum((good & (x == lower)).to(x.dtype), 0)
    half = (upper - lower) * 0.5 * inv
    nu = 0.0 * k
    going = k >= 0.0
    iteration = 0
    while going:
        # What an entry gets or lacks, over e^(ν - half) or e^(-ν - half): at the edges that is never tiny.
        rise, fall = tl.exp(nu - half), tl.exp(-nu - half)
        near = tl.exp(-tl.abs(x - tl.where(x > lower, upper, lower)) * inv)
        rest = 1.0 / (1.0 + near * tl.where(x > lower, fall, rise))
        term = tl.where(good, near * rest, 0.0)
        got, lacks = tl.where(x < lower, term, 0.0), tl.where(x > lower, term, 0.0)
        r, q = 1.0 / (1.0 + rise), 1.0 / (1.0 + fall)
        terms = tl.join(got, lacks)
        sums, slopes = tl.split(tl.sum(tl.join(terms, terms * rest[:, None]), 0))
        total, missing = tl.split(sums)
        bend, other = tl.split(slopes)
        total += (tied - left) * r
        missing += left * q
        bend += (tied - left) * r * r
        other += left * q * q
        step = (tl.log(total) - tl.log(missing) + 2.0 * nu) / (bend / total + other / missing)
        nu -= step
        iteration += 1
        going = (tl.abs(step) > SMALL) & (iteration < 8)
    return upper, lower, nu


@triton.jit
def nth_largest(x, good, n):
    """The n-th largest of the good entries, of which there are as many."""
    # Integer keys in the order of the numbers: their bits, flipped if negative. Bit by bit the largest one
    # that n entries reach, until it separates n from the others.
    BITS: tl.constexpr = x.dtype.primitive_bitwidth
    top = tl.full((), 1, tl.uint64 if BITS == 64 else tl.uint32) << (BITS - 1)
    last = top ^ top
    place = 0
    going = place < BITS
    while going:
        key = last | (top >> place)
        reach = tl.sum((good & (x >= _number(key, top, x))).to(tl.int32), 0)
        last = tl.where(reach >= n, key, last)
        place += 1
        going = (place < BITS) & (reach != n)
    return tl.min(tl.where(good & (x >= _number(last, top, x)), x, float("inf")), 0)


@triton.jit
def _number(key, top, like):
    """The number with this key; NaN if it would be beyond the infinities."""
    return tl.where(key >= top, key ^ top, ~key).to(like.dtype, bitcast=True)
