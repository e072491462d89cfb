// What lies between two evaluations of the objective, for the CPU: the soft top-k of rows, the moments of
// weighted samples, and their derivatives. Each row is worked on by one thread, start to end, while it is in
// the cache; `dcem/_native.py` builds this file and calls it. The formulas are those of `topk/lml.py`,
// `topk/dual.py`, `topk/standardize.py`, `topk/better_half.py` and `distributions/moments.py`, which serve
// where this does not.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

using std::int64_t;

inline double exponential(double x) { return std::exp(x); }

// exp to two units in the last place, in a form that compilers turn into vector instructions.
inline float exponential(float at) {
  const float x = std::min(std::max(at, -87.0f), 88.0f);
  const float shifted = x * 1.44269504f + 12582912.0f;  // adding 1.5 · 2^23 rounds to an integer
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const std::int32_t bits = (static_cast<std::int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return at < -87.0f ? 0.0f : at > 88.0f ? std::numeric_limits<float>::infinity() : p * power;
}

template <class T> inline T sigmoid(T z) { return T(1) / (T(1) + exponential(-z)); }

constexpr int64_t kBlock = 256;

// Σ term(i), added up in blocks so that long rows keep their digits.
template <class A, class F> double sum(int64_t n, F term) {
  double total = 0;
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t end = std::min(n, start + kBlock);
    A part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = start; i < end; i++) part += term(i);
    total += part;
  }
  return total;
}

// work(row, scratch) for every row, each by one thread, which has room for so many numbers.
template <class T, class F> void over_rows(int64_t rows, int threads, int64_t room, F work) {
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    std::vector<T> scratch(room);
#pragma omp for
    for (int64_t row = 0; row < rows; row++) work(row, scratch.data());
  }
}

template <class T> constexpr double small_step() { return sizeof(T) == 4 ? 3e-4 : 1e-8; }

// Newton's method on logit(mean σ(a + ν)), from the moments of a = (x - mean) scale; false for steep rows.
template <class T>
bool solve_smooth(int64_t n, const T* x, double mean, double scale, double spread, double k, T* z) {
  if (!(spread * scale <= 4)) return false;
  const double target = std::log(k / (n - k));
  double nu = target * std::sqrt(1 + 0.39269908169872414 * spread * spread * scale * scale);
#pragma omp simd
  for (int64_t i = 0; i < n; i++) z[i] = T((x[i] - mean) * scale);
  for (int iteration = 0; iteration < 7; iteration++) {
    const T shift = T(nu);
    double total = 0, squares = 0;
    for (int64_t start = 0; start < n; start += kBlock) {
      const int64_t end = std::min(n, start + kBlock);
      T part = 0, part_squares = 0;
#pragma omp simd reduction(+ : part, part_squares)
      for (int64_t i = start; i < end; i++) {
        const T y = sigmoid(z[i] + shift);
        part += y;
        part_squares += y * y;
      }
      total += part;
      squares += part_squares;
    }
    const double m = total / n, slope = m - squares / n;
    if (!(m < 1 && slope > m / 16)) return false;
    const double step = (std::log(m / (1 - m)) - target) * m * (1 - m) / slope;
    nu -= step;
    if (std::abs(step) > small_step<T>()) continue;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) z[i] += T(nu);
    return true;
  }
  return false;
}

// Newton's method from the threshold of the hard top-k, for rows of any kind: `from_threshold` in dual.py.
template <class T>
void solve_steep(int64_t n, const T* x, double inv, double k, T* z, T* scratch) {
  T *near = scratch, *share = scratch + n;
  const int64_t first = static_cast<int64_t>(std::ceil(k));
  std::copy(x, x + n, near);
  std::nth_element(near, near + first - 1, near + n, [](T a, T b) { return a > b; });
  const T upper = near[first - 1];
  const T lower = first == std::floor(k) ? *std::max_element(near + first, near + n) : upper;
  int64_t chosen = 0, tied = 0;
  for (int64_t i = 0; i < n; i++) chosen += x[i] > lower, tied += x[i] == lower;
  const T tied_share = T((k - chosen) / tied);
  const double half = (double(upper) - double(lower)) * inv / 2;
  for (int64_t i = 0; i < n; i++) {
    const bool above = x[i] > lower;
    const T distance = T(std::abs(double(x[i]) - (above ? upper : lower)) * inv);
    share[i] = above ? T(1) : x[i] == lower ? tied_share : T(0);
    near[i] = exponential(-distance);
    z[i] = above ? distance : -distance;
  }
  double nu = 0;
  for (int iteration = 0; iteration < 8; iteration++) {
    const T up = T(std::exp(nu - half)), down = T(std::exp(-nu - half));
    double got = 0, got_slope = 0, lacks = 0, lacks_slope = 0;
#pragma omp simd reduction(+ : got, got_slope, lacks, lacks_slope)
    for (int64_t i = 0; i < n; i++) {
      const T r = T(1) / (T(1) + near[i] * up), q = T(1) / (T(1) + near[i] * down);
      const T g = (T(1) - share[i]) * near[i] * r, l = share[i] * near[i] * q;
      got += g;
      got_slope += g * r;
      lacks += l;
      lacks_slope += l * q;
    }
    const double step =
        (std::log(got) - std::log(lacks) + 2 * nu) / (got_slope / got + lacks_slope / lacks);
    nu -= step;
    if (std::abs(step) <= small_step<T>()) break;
  }
  for (int64_t i = 0; i < n; i++) z[i] = T(nu + (x[i] > lower ? half + z[i] : z[i] - half));
}

// Entries that are not finite take no part: they are left out before, and filled in after.
template <class T> int64_t count_finite(int64_t n, const T* x) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i++) count += std::isfinite(x[i]);
  return count;
}

template <class T> void leave_out(int64_t n, const T* x, const T* from, T* to, T sign = 1) {
  for (int64_t i = 0; i < n; i++)
    if (std::isfinite(x[i])) *to++ = sign * from[i];
}

template <class T> void fill_in(int64_t n, const T* x, int64_t count, T* values, T filler) {
  for (int64_t i = n - 1; i >= 0; i--) values[i] = std::isfinite(x[i]) ? values[--count] : filler;
}

enum Flags { kStandardize = 1, kFiniteOnly = 2, kGate = 4, kLowest = 8, kHalf = 16 };  // kLowest: of -x
constexpr int kStats = 4;  // centre, 1 / scale, whether gradients pass, and how many entries the scale is of

// The middle entry, of two the larger: the lower median of -x.
template <class T> T upper_median(int64_t n, const T* x, T* scratch) {
  std::copy(x, x + n, scratch);
  std::nth_element(scratch, scratch + n / 2, scratch + n);
  return scratch[n / 2];
}

// How a row is scaled by its better half, which for the largest entries is the upper one: `by_better_half`.
template <class T> void scale_by_half(int64_t n, const T* x, T* scratch, T* stats) {
  const double eps = std::numeric_limits<T>::epsilon(), tiny = std::numeric_limits<T>::min();
  const double centre = upper_median(n, x, scratch);
  double size = 0, furthest = 0, upper = 0, lower = 0;
  int64_t count = 0;
  for (int64_t i = 0; i < n; i++) {
    const double d = x[i] - centre;
    size = std::max(size, std::abs(double(x[i])));
    furthest = std::max(furthest, d);
    count += d >= 0;
    (d >= 0 ? upper : lower) += d * d;
  }
  const double rounding = std::max(4 * eps * size, tiny);
  if (!(furthest > rounding)) count = n, upper += lower;
  const double scale = std::sqrt(upper / count);
  stats[0] = T(centre);
  stats[1] = T(scale > rounding ? 1 / scale : 0);
  stats[3] = T(count);
}

// y (rows, n), z (rows, n) at the higher of the two temperatures, and the statistics of every row.
// 1 where an entry is +inf and has a place in the order: then nothing is done.
template <class T>
int soft_topk(int64_t rows, int64_t n, const T* x, double k, const T* ks, double tau, const T* taus,
              double slope_tau, int flags, double digits, int threads, T* y, T* z, T* stats) {
  const T infinity = std::numeric_limits<T>::infinity(), sign = flags & kLowest ? -1 : 1;
  if (!(flags & kFiniteOnly) && std::count(x, x + rows * n, sign * infinity)) return 1;
  const double tiny = std::numeric_limits<T>::min(), eps = std::numeric_limits<T>::epsilon();
  over_rows<T>(rows, threads, 3 * n, [=](int64_t row, T* scratch) {
    const T* xr = x + row * n;
    T *yr = y + row * n, *zr = z + row * n;
    const int64_t count = count_finite(n, xr);
    const bool copied = count < n || (flags & kLowest);
    if (copied) leave_out(n, xr, xr, scratch, sign);
    const T* xs = copied ? scratch : xr;
    const double divisor = std::max<int64_t>(count, 1);
    const double mean = sum<double>(count, [=](int64_t i) { return double(xs[i]); }) / divisor;
    const T centre = T(mean);
    const double spread = std::sqrt(
        sum<double>(count, [=](int64_t i) { const double d = double(xs[i]) - centre; return d * d; }) / divisor);
    const bool informative = spread > std::max(4 * eps * std::abs(mean), tiny);
    T* out = stats + kStats * row;
    out[0] = centre;
    out[1] = T(!(flags & kStandardize) ? 1 : informative ? 1 / spread : 0);
    out[3] = T(count);
    if ((flags & kHalf) && count) scale_by_half(count, xs, scratch + n, out);
    const double scale = out[1];
    out[2] = !(flags & kGate) || spread > digits * eps * std::abs(mean);
    const double kr = ks ? ks[row] : k, tr = taus ? taus[row] : tau;
    const auto solve = [&](double tau) {
      const double inv = std::min(scale / std::max(tau, tiny), 1 / tiny);
      if (kr >= count) std::fill(zr, zr + count, infinity);
      else if (!solve_smooth(count, xs, centre, inv, spread, kr, zr))
        solve_steep(count, xs, inv, kr, zr, scratch + n);
    };
    solve(tr);
#pragma omp simd
    for (int64_t i = 0; i < count; i++) yr[i] = sigmoid(zr[i]);
    if (slope_tau > tr) solve(slope_tau);
    if (count < n) {
      fill_in(n, xr, count, yr, T(0));
      fill_in(n, xr, count, zr, -infinity);
    }
  });
  return 0;
}

// The gradients of x and, where asked for, of k and tau, a row each.
template <class T>
void soft_topk_backward(int64_t rows, int64_t n, const T* x, const T* g, const T* z, const T* stats, double tau,
                        const T* taus, int flags, int threads, T* gx, T* gk, T* gtau) {
  const double tiny = std::numeric_limits<T>::min();
  const T sign = flags & kLowest ? -1 : 1;
  over_rows<T>(rows, threads, 3 * n, [=](int64_t row, T* scratch) {
    const T *xr = x + row * n, *gr = g + row * n, *zr = z + row * n;
    T* out = gx + row * n;
    const int64_t count = count_finite(n, xr);
    const bool copied = count < n || (flags & kLowest);
    if (copied) leave_out(n, xr, xr, scratch, sign);
    const T* xs = copied ? scratch : xr;
    if (count < n) {
      leave_out(n, xr, gr, scratch + n);
      leave_out(n, xr, zr, scratch + 2 * n);
      gr = scratch + n, zr = scratch + 2 * n;
    }
    T least = std::numeric_limits<T>::infinity();
    for (int64_t i = 0; i < count; i++) least = std::min(least, std::abs(zr[i]));
    if (gk) gk[row] = 0;
    if (gtau) gtau[row] = 0;
    if (std::isinf(least) || !stats[kStats * row + 2]) {  // decided once and for all, or rounding
      std::fill(out, out + n, T(0));
      return;
    }
    // s = y (1 - y) is e^-|z| / (1 + e^-|z|)², here relative to the largest, so that it never underflows.
    const T peak = exponential(-least);
    T total = 0, product = 0;
#pragma omp simd reduction(+ : total, product)
    for (int64_t i = 0; i < count; i++) {
      const T relative = exponential(least - std::abs(zr[i])), below = T(1) + peak * relative;
      out[i] = relative / (below * below);
      total += out[i];
      product += out[i] * gr[i];
    }
    const T mean_g = product / total;
    const double centre = stats[kStats * row], scale = stats[kStats * row + 1];
    const T inv = T(1 / std::min(std::max(taus ? double(taus[row]) : tau, tiny), 1 / tiny));
    if (gk) gk[row] = mean_g;
    T with_z = 0, with_u = 0;
#pragma omp simd reduction(+ : with_z, with_u)
    for (int64_t i = 0; i < count; i++) {
      const T ga = out[i] * peak * (gr[i] - mean_g);
      with_z += ga * (std::isinf(zr[i]) ? T(0) : zr[i]);
      out[i] = ga * inv;
      with_u += out[i] * T((xs[i] - centre) * scale);
    }
    if (gtau) gtau[row] = -with_z * inv;
    if (flags & (kStandardize | kHalf)) {
      const T of = stats[kStats * row + 3], along = with_u / of;
      const bool of_all = of == count;
      T rest = 0, ties = 0;
#pragma omp simd reduction(+ : rest, ties)
      for (int64_t i = 0; i < count; i++) {
        if (of_all || xs[i] >= centre) out[i] -= T((xs[i] - centre) * scale) * along;
        rest += out[i];
        ties += xs[i] == centre;
      }
      if (flags & kHalf) {  // the centre is an entry: where several are equal, they share its gradient
        const T share = rest / ties;
        rest = 0;
#pragma omp simd reduction(+ : rest)
        for (int64_t i = 0; i < count; i++) {
          out[i] -= xs[i] == centre ? share : T(0);
          rest += out[i];
        }
      }
      // A shift of the row changes nothing: hold that exactly, since what is left is divided by the spread,
      // and multiplied by whatever all entries share.
      const T shift = rest / count;
#pragma omp simd
      for (int64_t i = 0; i < count; i++) out[i] = (out[i] - shift) * T(scale);
    }
    if (sign < 0)
      for (int64_t i = 0; i < count; i++) out[i] = -out[i];
    if (count < n) fill_in(n, xr, count, out, T(0));
  });
}

// How much of the last variance N weights replace, and its derivative by μ = (Σw)² / Σw²; see `rank_mu`.
struct Rate {
  double total = 0, squares = 0, rate = 1, slope = 0;
  template <class T> Rate(int64_t N, int64_t n, const T* w, bool rank_mu, double slowest) {
    for (int64_t i = 0; i < N; i++) total += w[i], squares += double(w[i]) * w[i];
    if (!rank_mu) return;
    const double mu = total * total / squares, top = mu - 1.75 + 1 / mu, below = (n + 2.0) * (n + 2.0) + mu;
    const double factor = 2 * (n + 2.0) / 3, free = factor * top / below;
    rate = std::isnan(free) ? free : std::min(std::max(free, slowest), 1.0);
    if (free == rate) slope = factor * ((1 - 1 / (mu * mu)) - top / below) / below;
  }
};

// sums[j] = Σ term(p, i, j) over N samples i, in their order, with p = w / total. By fours, since each pass over
// the sums waits for what the last one stored.
template <class T, class F>
void add_samples(int64_t N, int64_t n, const T* w, double total, double* sums, F term) {
  std::fill(sums, sums + n, 0.0);
  int64_t i = 0;
  for (; i + 4 <= N; i += 4) {
    const double a = w[i] / total, b = w[i + 1] / total, c = w[i + 2] / total, d = w[i + 3] / total;
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
      sums[j] = sums[j] + term(a, i, j) + term(b, i + 1, j) + term(c, i + 2, j) + term(d, i + 3, j);
  }
  for (; i < N; i++) {
    const double p = w[i] / total;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) sums[j] += term(p, i, j);
  }
}

// mean and sigma (rows, n) of samples u (rows, N, n), and ∂σ/∂variance, which is 0 on the floor. With the last
// mean and sigma, the variance is by rank-mu, and `excess` how far it is above the last one, at a rate of 1.
template <class T>
void moments(int64_t rows, int64_t N, int64_t n, const T* u, const T* w, const T* last_mean,
             const T* last_sigma, double slowest, double floor, const T* floors, double near, int threads,
             T* mean, T* sigma, T* slope, T* excess) {
  over_rows<double>(rows, threads, n, [=](int64_t row, double* sums) {
    const T *ur = u + row * N * n, *wr = w + row * N;
    T *mr = mean + row * n, *sr = sigma + row * n, *dr = slope + row * n;
    const Rate by(N, n, wr, last_mean, slowest);
    add_samples(N, n, wr, by.total, sums, [=](double p, int64_t i, int64_t j) { return p * ur[i * n + j]; });
    for (int64_t j = 0; j < n; j++) mr[j] = T(sums[j]);
    add_samples(N, n, wr, by.total, sums, [=](double p, int64_t i, int64_t j) {
      const double d = ur[i * n + j] - mr[j];
      return p * d * d;
    });
    if (last_mean) {
      for (int64_t j = 0; j < n; j++) {
        const int64_t at = row * n + j;
        const double move = mr[j] - last_mean[at], last = double(last_sigma[at]) * last_sigma[at];
        excess[at] = T(sums[j] + move * move - last);
        sums[j] = by.rate * (sums[j] + move * move) + (1 - by.rate) * last;
      }
    }
    for (int64_t j = 0; j < n; j++) {
      const double close = near * mr[j];
      const double least = (floors ? double(floors[row * n + j]) : floor) + close * close;
      sr[j] = T(std::sqrt(std::max(sums[j], least)));
      if (std::isnan(sums[j])) sr[j] = T(sums[j]);
      dr[j] = sums[j] > least ? T(0.5) / sr[j] : T(0);
    }
  });
}

// With c the mean, or by rank-mu the last one, p = w / Σw, and g the gradient of Σ p (u - c)²:
// gu = p (gmean + 2 (u - c) g), and gw that of p, d gmean + (u - c)² g, less its mean and over Σw.
template <class T>
void moments_backward(int64_t rows, int64_t N, int64_t n, const T* u, const T* w, const T* last_mean,
                      const T* last_sigma, double slowest, const T* mean, const T* slope, const T* excess,
                      const T* gmean, const T* gsigma, int threads, T* gu, T* gw, T* glast_mean,
                      T* glast_sigma) {
  over_rows<T>(rows, threads, n + N, [=](int64_t row, T* scratch) {
    T *gvar = scratch, *gp = gvar + n;
    const T *ur = u + row * N * n, *wr = w + row * N, *mr = mean + row * n, *gm = gmean + row * n;
    const T* cr = last_mean ? last_mean + row * n : mr;
    const Rate by(N, n, wr, last_mean, slowest);
    double grate = 0;
    for (int64_t j = 0; j < n; j++) {
      const int64_t at = row * n + j;
      const T g = gsigma[at] * slope[at];
      gvar[j] = T(by.rate) * g;
      if (!last_mean) continue;
      grate += double(g) * excess[at];
      glast_mean[at] = 2 * gvar[j] * (cr[j] - mr[j]);
      glast_sigma[at] = T(2 * (1 - by.rate) * g * last_sigma[at]);
    }
    const double inv = 1 / by.total;
    for (int64_t i = 0; i < N; i++) {
      const T p = T(wr[i] * inv);
      const T* ui = ur + i * n;
      T *out = gu + (row * N + i) * n, along = 0;
#pragma omp simd reduction(+ : along)
      for (int64_t j = 0; j < n; j++) {
        const T from = ui[j] - cr[j];
        along += (ui[j] - mr[j]) * gm[j] + from * from * gvar[j];
        out[j] = p * (gm[j] + 2 * from * gvar[j]);
      }
      gp[i] = along;
    }
    double average = 0;
#pragma omp simd reduction(+ : average)
    for (int64_t i = 0; i < N; i++) average += wr[i] * inv * gp[i];
    const double gmu = grate * by.slope * 2 * by.total / by.squares, share = by.total / by.squares;
#pragma omp simd
    for (int64_t i = 0; i < N; i++)
      gw[row * N + i] = T((gp[i] - average) * inv + gmu * (1 - wr[i] * share));
  });
}

// What a refit keeps for its derivatives, in one piece of rows · (N + kStats + 2 n) numbers.
template <class T> struct Kept {
  T *z, *stats, *slope, *excess;
  Kept(int64_t rows, int64_t N, int64_t n, T* at)
      : z(at), stats(z + rows * N), slope(stats + rows * kStats), excess(slope + rows * n) {}
};

// Weights of the samples u by their values, and the moments of u with them: `soft_topk`, then `moments`.
template <class T>
void refit(int64_t rows, int64_t N, int64_t n, const T* values, const T* u, const T* last_mean,
           const T* last_sigma, double k, double tau, double slope_tau, int flags, double digits,
           double slowest, double floor, const T* floors, double near, int threads, T* weights, T* mean,
           T* sigma, T* keep) {
  const Kept<T> kept(rows, N, n, keep);
  const T* none = nullptr;
  soft_topk(rows, N, values, k, none, tau, none, slope_tau, flags, digits, threads, weights, kept.z, kept.stats);
  moments(rows, N, n, u, weights, last_mean, last_sigma, slowest, floor, floors, near, threads, mean, sigma,
          kept.slope, kept.excess);
}

template <class T>
void refit_backward(int64_t rows, int64_t N, int64_t n, const T* values, const T* u, const T* last_mean,
                    const T* last_sigma, const T* weights, const T* mean, T* keep, double tau, int flags,
                    double slowest, const T* gweights, const T* gmean, const T* gsigma, int threads,
                    T* gvalues, T* gu, T* glast_mean, T* glast_sigma) {
  const Kept<T> kept(rows, N, n, keep);
  std::vector<T> by_moments(rows * N);
  T *g = by_moments.data(), *none = nullptr;
  moments_backward(rows, N, n, u, weights, last_mean, last_sigma, slowest, mean, kept.slope, kept.excess, gmean,
                   gsigma, threads, gu, g, glast_mean, glast_sigma);
  if (gweights)
    for (int64_t i = 0; i < rows * N; i++) g[i] += gweights[i];
  soft_topk_backward(rows, N, values, g, kept.z, kept.stats, tau, none, flags, threads, gvalues, none, none);
}

}  // namespace

// In the order of `KERNELS` in dcem/_native.py.
#define KERNELS(T)                                                                                         \
  {reinterpret_cast<void*>(&soft_topk<T>), reinterpret_cast<void*>(&soft_topk_backward<T>),                \
   reinterpret_cast<void*>(&moments<T>),   reinterpret_cast<void*>(&moments_backward<T>),                  \
   reinterpret_cast<void*>(&refit<T>),     reinterpret_cast<void*>(&refit_backward<T>)}

extern "C" void* kernels_float32[] = KERNELS(float);
extern "C" void* kernels_float64[] = KERNELS(double);
