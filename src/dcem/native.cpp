// What lies between two evaluations of the objective, for the CPU: the soft top-k of rows, the moments of
// weighted samples, and their derivatives. Each row is worked on by one thread, start to end, while it is in
// the cache; `dcem/_native.py` builds this file and calls it. The formulas are those of `topk/lml.py`,
// `topk/dual.py`, `topk/standardize.py` and `distributions/moments.py`, which serve where this does not.

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

// Σ term(i), added up in blocks so that long rows keep their digits.
template <class A, class F> double sum(int64_t n, F term) {
  double total = 0;
  for (int64_t start = 0; start < n; start += 256) {
    const int64_t end = std::min(n, start + 256);
    A part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = start; i < end; i++) part += term(i);
    total += part;
  }
  return total;
}

template <class T> constexpr double small_step() { return sizeof(T) == 4 ? 3e-4 : 1e-8; }

// Newton's method on logit(mean σ(a + ν)), from the moments of a = (x - mean) scale; false for steep rows.
template <class T>
bool solve_smooth(int64_t n, const T* x, T mean, double scale, double spread, double k, T* z) {
  if (!(spread * scale <= 4)) return false;
  const double target = std::log(k / (n - k));
  double nu = target * std::sqrt(1 + 0.39269908169872414 * spread * spread * scale * scale);
#pragma omp simd
  for (int64_t i = 0; i < n; i++) z[i] = (x[i] - mean) * T(scale);
  for (int iteration = 0; iteration < 7; iteration++) {
    const T shift = T(nu);
    double total = 0, squares = 0;
    for (int64_t start = 0; start < n; start += 256) {
      const int64_t end = std::min(n, start + 256);
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
void solve_steep(int64_t n, const T* x, double inv, double k, T* z, std::vector<T>& scratch) {
  scratch.resize(2 * n);
  T *order = scratch.data(), *near = order, *share = order + n;
  const int64_t first = static_cast<int64_t>(std::ceil(k));
  std::copy(x, x + n, order);
  std::nth_element(order, order + first - 1, order + n, [](T a, T b) { return a > b; });
  const T upper = order[first - 1];
  const T lower = first == std::floor(k) ? *std::max_element(order + first, order + n) : upper;
  int64_t chosen = 0, tied = 0;
  for (int64_t i = 0; i < n; i++) chosen += x[i] > lower, tied += x[i] == lower;
  const T tied_share = T((k - chosen) / tied);
  const double half = (double(upper) - double(lower)) * inv / 2;
  for (int64_t i = 0; i < n; i++) {
    const bool above = x[i] > lower;
    const T distance = std::abs(x[i] - (above ? upper : lower)) * T(inv);
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

enum Flags { kStandardize = 1 };

// y (rows, n), z (rows, n) at the higher of the two temperatures, and (mean, 1 / std) of every row.
// 1 where an entry is not finite (or so large that a difference may not be): then nothing is done.
template <class T>
int soft_topk(int64_t rows, int64_t n, const T* x, double k, const T* ks, double tau, const T* taus,
              double slope_tau, int flags, int threads, T* y, T* z, T* stats) {
  const double huge = sizeof(T) == 4 ? 1e37 : 1e300;
  if (!(sum<T>(rows * n, [=](int64_t i) { return std::abs(x[i]); }) < huge)) return 1;
  const double tiny = std::numeric_limits<T>::min(), eps = std::numeric_limits<T>::epsilon();
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    std::vector<T> scratch;
#pragma omp for
    for (int64_t row = 0; row < rows; row++) {
      const T* xr = x + row * n;
      T *yr = y + row * n, *zr = z + row * n;
      const double mean = sum<double>(n, [=](int64_t i) { return double(xr[i]); }) / n;
      const T centre = T(mean);
      const double spread = std::sqrt(
          sum<double>(n, [=](int64_t i) { const double d = xr[i] - centre; return d * d; }) / n);
      const bool informative = spread > std::max(4 * eps * std::abs(mean), tiny);
      const double scale = !(flags & kStandardize) ? 1 : informative ? 1 / spread : 0;
      stats[2 * row] = centre;
      stats[2 * row + 1] = T(scale);
      const double kr = ks ? ks[row] : k;
      const auto solve = [&](double tau) {
        const double inv = std::min(scale / std::max(tau, tiny), 1 / tiny);
        if (kr >= n) std::fill(zr, zr + n, std::numeric_limits<T>::infinity());
        else if (!solve_smooth(n, xr, centre, inv, spread, kr, zr)) solve_steep(n, xr, inv, kr, zr, scratch);
      };
      const double tr = taus ? taus[row] : tau;
      solve(tr);
#pragma omp simd
      for (int64_t i = 0; i < n; i++) yr[i] = sigmoid(zr[i]);
      if (slope_tau > tr) solve(slope_tau);
    }
  }
  return 0;
}

// The gradients of x and, where asked for, of k and tau, a row each.
template <class T>
void soft_topk_backward(int64_t rows, int64_t n, const T* x, const T* g, const T* z, const T* stats, double tau,
                        const T* taus, int flags, int threads, T* gx, T* gk, T* gtau) {
  const double tiny = std::numeric_limits<T>::min();
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t row = 0; row < rows; row++) {
    const T *xr = x + row * n, *gr = g + row * n, *zr = z + row * n;
    T* out = gx + row * n;
    T least = std::numeric_limits<T>::infinity();
    for (int64_t i = 0; i < n; i++) least = std::min(least, std::abs(zr[i]));
    if (gk) gk[row] = 0;
    if (gtau) gtau[row] = 0;
    if (std::isinf(least)) {  // decided once and for all
      std::fill(out, out + n, T(0));
      continue;
    }
    // s = y (1 - y) is e^-|z| / (1 + e^-|z|)², here relative to the largest, so that it never underflows.
    const T peak = exponential(-least);
    T total = 0, product = 0;
#pragma omp simd reduction(+ : total, product)
    for (int64_t i = 0; i < n; i++) {
      const T relative = exponential(least - std::abs(zr[i])), below = T(1) + peak * relative;
      out[i] = relative / (below * below);
      total += out[i];
      product += out[i] * gr[i];
    }
    const T mean_g = product / total;
    const T centre = stats[2 * row], inv_std = stats[2 * row + 1];
    const double tr = std::min(std::max(taus ? double(taus[row]) : tau, tiny), 1 / tiny);
    const T inv = T(1 / tr);
    if (gk) gk[row] = mean_g;
    T with_z = 0, with_u = 0, all = 0;
#pragma omp simd reduction(+ : with_z, with_u, all)
    for (int64_t i = 0; i < n; i++) {
      const T ga = out[i] * peak * (gr[i] - mean_g);
      with_z += ga * (std::isinf(zr[i]) ? T(0) : zr[i]);
      out[i] = ga * inv;
      with_u += out[i] * (xr[i] - centre) * inv_std;
      all += out[i];
    }
    if (gtau) gtau[row] = -with_z * inv;
    if (!(flags & kStandardize)) continue;
    // A shift of the row changes nothing: hold that exactly, since what is left is divided by the spread, and
    // multiplied by whatever all entries share.
    const T along = with_u / n;
    T rest = 0;
#pragma omp simd reduction(+ : rest)
    for (int64_t i = 0; i < n; i++) {
      out[i] -= (xr[i] - centre) * inv_std * along;
      rest += out[i];
    }
    const T shift = rest / n;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = (out[i] - shift) * inv_std;
  }
}

// mean and sigma (rows, n) of samples u (rows, N, n), and ∂σ/∂variance, which is 0 on the floor.
template <class T>
void moments(int64_t rows, int64_t N, int64_t n, const T* u, const T* w, double floor, const T* floors,
             int64_t floor_step, double near, int threads, T* mean, T* sigma, T* slope) {
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    std::vector<double> scratch(n);
    double* sums = scratch.data();
#pragma omp for
    for (int64_t row = 0; row < rows; row++) {
      const T *ur = u + row * N * n, *wr = w + row * N;
      T *mr = mean + row * n, *sr = sigma + row * n, *dr = slope + row * n;
      double total = 0;
      for (int64_t i = 0; i < N; i++) total += wr[i];
      std::fill(sums, sums + n, 0.0);
      for (int64_t i = 0; i < N; i++) {
        const double p = wr[i] / total;
#pragma omp simd
        for (int64_t j = 0; j < n; j++) sums[j] += p * ur[i * n + j];
      }
      for (int64_t j = 0; j < n; j++) mr[j] = T(sums[j]);
      std::fill(sums, sums + n, 0.0);
      for (int64_t i = 0; i < N; i++) {
        const double p = wr[i] / total;
#pragma omp simd
        for (int64_t j = 0; j < n; j++) {
          const double d = ur[i * n + j] - mr[j];
          sums[j] += p * d * d;
        }
      }
      for (int64_t j = 0; j < n; j++) {
        const double close = near * mr[j];
        const double least = (floors ? double(floors[row * floor_step + j]) : floor) + close * close;
        sr[j] = T(std::sqrt(std::max(sums[j], least)));
        if (std::isnan(sums[j])) sr[j] = T(sums[j]);
        dr[j] = sums[j] > least ? T(0.5) / sr[j] : T(0);
      }
    }
  }
}

// With d = u - mean and p = w / Σw: gu = p (gmean + 2 d gvar), gw = (d gmean + (d² - var) gvar) / Σw.
template <class T>
void moments_backward(int64_t rows, int64_t N, int64_t n, const T* u, const T* w, const T* mean, const T* slope,
                      const T* gmean, const T* gsigma, int threads, T* gu, T* gw) {
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    std::vector<T> scratch(n + N);
    T *gvar = scratch.data(), *gp = gvar + n;
#pragma omp for
    for (int64_t row = 0; row < rows; row++) {
      const T *ur = u + row * N * n, *wr = w + row * N, *mr = mean + row * n, *gm = gmean + row * n;
      double total = 0;
      for (int64_t i = 0; i < N; i++) total += wr[i];
      for (int64_t j = 0; j < n; j++) gvar[j] = gsigma[row * n + j] * slope[row * n + j];
      for (int64_t i = 0; i < N; i++) {
        const T p = T(wr[i] / total);
        const T* ui = ur + i * n;
        T along = 0;
#pragma omp simd reduction(+ : along)
        for (int64_t j = 0; j < n; j++) {
          const T d = ui[j] - mr[j];
          along += d * (gm[j] + d * gvar[j]);
        }
        gp[i] = along;
        if (!gu) continue;
        T* out = gu + (row * N + i) * n;
#pragma omp simd
        for (int64_t j = 0; j < n; j++) out[j] = p * (gm[j] + 2 * (ui[j] - mr[j]) * gvar[j]);
      }
      if (!gw) continue;
      double average = 0;
      for (int64_t i = 0; i < N; i++) average += wr[i] / total * gp[i];
      for (int64_t i = 0; i < N; i++) gw[row * N + i] = T((gp[i] - average) / total);
    }
  }
}

// Is the spread of every row more than `digits` times the rounding of its mean?
template <class T> int resolved(int64_t rows, int64_t n, const T* x, double digits) {
  const double least = digits * std::numeric_limits<T>::epsilon();
  for (int64_t row = 0; row < rows; row++) {
    const T* xr = x + row * n;
    const double mean = sum<double>(n, [=](int64_t i) { return double(xr[i]); }) / n;
    const double square = sum<double>(n, [=](int64_t i) { const double d = xr[i] - mean; return d * d; }) / n;
    if (!(std::sqrt(square) > least * std::abs(mean))) return 0;
  }
  return 1;
}

}  // namespace

#define INSTANCES(T, NAME)                                                                                     \
  extern "C" int soft_topk_##NAME(int64_t rows, int64_t n, const T* x, double k, const T* ks, double tau,      \
                                  const T* taus, double slope_tau, int flags, int threads, T* y, T* z,         \
                                  T* stats) {                                                                  \
    return soft_topk(rows, n, x, k, ks, tau, taus, slope_tau, flags, threads, y, z, stats);                    \
  }                                                                                                            \
  extern "C" void soft_topk_backward_##NAME(int64_t rows, int64_t n, const T* x, const T* g, const T* z,       \
                                            const T* stats, double tau, const T* taus, int flags, int threads, \
                                            T* gx, T* gk, T* gtau) {                                           \
    soft_topk_backward(rows, n, x, g, z, stats, tau, taus, flags, threads, gx, gk, gtau);                      \
  }                                                                                                            \
  extern "C" void moments_##NAME(int64_t rows, int64_t N, int64_t n, const T* u, const T* w, double floor,     \
                                 const T* floors, int64_t floor_step, double near, int threads, T* mean,       \
                                 T* sigma, T* slope) {                                                         \
    moments(rows, N, n, u, w, floor, floors, floor_step, near, threads, mean, sigma, slope);                   \
  }                                                                                                            \
  extern "C" void moments_backward_##NAME(int64_t rows, int64_t N, int64_t n, const T* u, const T* w,          \
                                          const T* mean, const T* slope, const T* gmean, const T* gsigma,      \
                                          int threads, T* gu, T* gw) {                                         \
    moments_backward(rows, N, n, u, w, mean, slope, gmean, gsigma, threads, gu, gw);                           \
  }                                                                                                            \
  extern "C" int resolved_##NAME(int64_t rows, int64_t n, const T* x, double digits) {                         \
    return resolved(rows, n, x, digits);                                                                       \
  }

INSTANCES(float, float32)
INSTANCES(double, float64)
