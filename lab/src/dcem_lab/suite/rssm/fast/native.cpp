// On the CPU: rolls out a world model and judges where plans end (`rollout_native.py`), takes networks of critics
// and actors forward and back in training (`mlp_native.py`), and multiplies where the model learns
// (`products.py`). `native.py` builds this file. In rollouts and networks, a thread takes some lines of one
// member through all steps or layers, with everything but the weights in its own cache. The formulas are those of
// `rssm/model.py` and `rssm/nets.py`.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#if defined(__AVX512BF16__)
#include <immintrin.h>
#define HAS_BFLOAT16 1
#else
#define HAS_BFLOAT16 0
#endif

namespace {

using std::int64_t;

#if defined(__AVX512F__)
constexpr int kLanes = 16, kRows = 8;
#else
constexpr int kLanes = 8, kRows = 4;
#endif
constexpr int kPanel = 3 * kLanes;  // columns that are worked on together
constexpr int64_t kBlock = 4 * kRows;  // trajectories that a thread takes at once
typedef float Vector __attribute__((vector_size(4 * kLanes)));
typedef std::int32_t Whole __attribute__((vector_size(4 * kLanes)));

inline Vector load(const float* from) {
  Vector x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
inline void store(float* to, Vector x) { std::memcpy(to, &x, sizeof x); }
inline Vector all(float x) { return x - Vector{}; }

inline Vector exponential(Vector x) {
  x = x < -87.0f ? all(-87.0f) : x;
  x = x > 87.0f ? all(87.0f) : x;
  const Vector shifted = x * 1.44269504f + 12582912.0f;  // adding 1.5 · 2^23 rounds to an integer
  const Vector n = shifted - 12582912.0f;
  const Vector r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vector p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Whole bits = (__builtin_convertvector(n, Whole) + 127) << 23;
  Vector power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}
inline Vector sigmoid(Vector x) { return 1.0f / (1.0f + exponential(-x)); }
inline Vector tangent(Vector x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

// x Φ(x), with the error function to 1.5e-7 (Abramowitz and Stegun, 7.1.26).
inline Vector gelu(Vector x) {
  const Vector scaled = x * 0.70710678f;
  const Vector size = scaled < 0.0f ? -scaled : scaled;
  const Vector t = 1.0f / (1.0f + 0.3275911f * size);
  Vector p = all(1.061405429f);
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const Vector rest = 0.5f * p * t * exponential(-size * size);  // 1 − Φ(|x|)
  return x * (x < 0.0f ? rest : 1.0f - rest);
}
inline Vector relu(Vector x) { return x < 0.0f ? Vector{} : x; }
inline Vector elu(Vector x) { return x > 0.0f ? x : exponential(x) - 1.0f; }

enum Function : int { kNone, kRelu, kElu, kGelu, kNormed };

inline Vector activated(Vector x, Function f) {
  return f == kGelu ? gelu(x) : f == kRelu ? relu(x) : f == kElu ? elu(x) : x;
}

// What a product reads: numbers, or in bfloat16 pairs of neighbours. A vector of weights, one factor for all of
// them, and their products added to sums.
using Pair = std::uint32_t;
inline Vector weights(const float* from) { return load(from); }
inline Vector factor(float x) { return all(x); }
inline Vector added(Vector sum, Vector x, Vector w) { return sum + x * w; }
#if HAS_BFLOAT16
inline __m512bh weights(const Pair* from) { return (__m512bh)_mm512_loadu_si512(from); }
inline __m512bh factor(Pair x) { return (__m512bh)_mm512_set1_epi32(static_cast<int>(x)); }
inline Vector added(Vector sum, __m512bh x, __m512bh w) {
  return (Vector)_mm512_dpbf16_ps((__m512)sum, x, w);
}

// To the nearest, ties to even.
inline void round(int64_t inputs, const float* from, Pair* to) {
  for (int64_t i = 0; i < inputs; i += kLanes) {
    const int64_t left = std::min<int64_t>(kLanes, inputs - i);
    const __mmask16 used = (1u << left) - 1;
    const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(used, from + i));
    _mm256_mask_storeu_epi32(to + i / 2, (1u << (left + 1) / 2) - 1, rounded);
  }
}
#endif

// Some rows and some columns of a panel, whose weights lie one after the other.
template <int rows, int columns, class W>
void tile(int64_t inputs, int64_t outputs, const W* x, int64_t stride, const W* weight, const float* bias,
          Function f, float* out, int64_t out_stride) {
  Vector sums[rows][columns];
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
    for (int c = 0; c < columns; c++) sums[r][c] = load(bias + c * kLanes);
  for (int64_t i = 0; i < inputs; i++, weight += kPanel) {
    decltype(weights(weight)) w[columns];
#pragma GCC unroll 3
    for (int c = 0; c < columns; c++) w[c] = weights(weight + c * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      const auto here = factor(x[r * stride + i]);
#pragma GCC unroll 3
      for (int c = 0; c < columns; c++) sums[r][c] = added(sums[r][c], here, w[c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
    for (int c = 0; c < columns; c++) {
      const Vector y = activated(sums[r][c], f);
      float* to = out + r * out_stride + c * kLanes;
      const int64_t left = outputs - c * kLanes;
      if (left >= kLanes) store(to, y);
      else std::memcpy(to, &y, sizeof(float) * left);
    }
}

template <int rows, class W>
void some(int64_t n, int64_t inputs, int64_t outputs, const W* x, int64_t stride, const W* weight,
          const float* bias, Function f, float* out, int64_t out_stride) {
  if (n < rows) {
    if constexpr (rows > 1)
      some<rows - 1>(n, inputs, outputs, x, stride, weight, bias, f, out, out_stride);
  } else if (outputs > 2 * kLanes) {
    tile<rows, 3>(inputs, outputs, x, stride, weight, bias, f, out, out_stride);
  } else if (outputs > kLanes) {
    tile<rows, 2>(inputs, outputs, x, stride, weight, bias, f, out, out_stride);
  } else {
    tile<rows, 1>(inputs, outputs, x, stride, weight, bias, f, out, out_stride);
  }
}

// Room for the numbers between the layers of a network, and for those rounded to bfloat16.
struct Room {
  std::vector<float> between[2];
  std::vector<Pair> pairs;
};

// A fully connected layer of some members: weights (M, panels, inputs or pairs of them, kPanel) and biases
// (M, panels · kPanel).
struct Layer {
  int64_t inputs, outputs, in_pairs;
  const void* weight;
  const float* bias;

  int64_t panels() const { return (outputs + kPanel - 1) / kPanel; }

  void run(int64_t member, int64_t n, const float* x, int64_t stride, Function f, float* out,
           int64_t out_stride, Room& room) const {
#if HAS_BFLOAT16
    if (in_pairs) {
      const int64_t words = (inputs + 1) / 2;
      room.pairs.resize(std::max<std::size_t>(room.pairs.size(), n * words));
      for (int64_t r = 0; r < n; r++) round(inputs, x + r * stride, &room.pairs[r * words]);
      auto in_bfloat16 = static_cast<const Pair*>(weight);
      return run(member, n, words, room.pairs.data(), words, in_bfloat16, f, out, out_stride);
    }
#endif
    run(member, n, inputs, x, stride, static_cast<const float*>(weight), f, out, out_stride);
  }

  template <class W>
  void run(int64_t member, int64_t n, int64_t words, const W* x, int64_t stride, const W* w, Function f,
           float* out, int64_t out_stride) const {
    w += member * panels() * words * kPanel;
    const float* b = bias + member * panels() * kPanel;
    for (int64_t p = 0; p < panels(); p++)  // a panel stays in the cache for all rows
      for (int64_t r = 0; r < n; r += kRows)
        some<kRows>(std::min<int64_t>(kRows, n - r), words, std::min<int64_t>(kPanel, outputs - p * kPanel),
                    x + r * stride, stride, w + p * words * kPanel, b + p * kPanel, f,
                    out + r * out_stride + p * kPanel, out_stride);
  }
};

// silu(LayerNorm(x)) in place.
void normalize(int64_t n, int64_t width, float* x) {
  for (int64_t r = 0; r < n; r++, x += width) {
    float mean = 0, variance = 0;
#pragma omp simd reduction(+ : mean)
    for (int64_t i = 0; i < width; i++) mean += x[i];
    mean /= width;
#pragma omp simd reduction(+ : variance)
    for (int64_t i = 0; i < width; i++) variance += (x[i] - mean) * (x[i] - mean);
    const float scale = 1.0f / std::sqrt(variance / width + 1e-5f);
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
      const Vector y = (load(x + i) - mean) * scale;
      store(x + i, y * sigmoid(y));
    }
    for (; i < width; i++) {
      const float y = (x[i] - mean) * scale;
      x[i] = y / (1.0f + std::exp(-y));
    }
  }
}

// Layers one after the other, all but the last activated or normalised.
void network(const Layer* layers, int64_t count, int64_t member, int64_t n, const float* x, int64_t stride,
             Function f, float* out, int64_t out_stride, Room& room) {
  for (int64_t i = 0; i < count; i++) {
    const bool last = i + 1 == count;
    const int64_t width = last ? out_stride : layers[i].outputs;
    std::vector<float>& here = room.between[i % 2];
    if (!last) here.resize(std::max<std::size_t>(here.size(), n * width));
    float* to = last ? out : here.data();
    layers[i].run(member, n, x, stride, last || f == kNormed ? kNone : f, to, width, room);
    if (!last && f == kNormed) normalize(n, width, to);
    x = to, stride = width;
  }
}

// Vectors of w numbers, and what is left behind the last whole one.
template <class F> inline void elementwise(int64_t width, F f) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) f(i, std::integral_constant<int64_t, kLanes>());
  if (i < width) f(i, width - i);
}
template <class N> inline Vector load(const float* from, N n) {
  Vector x{};
  std::memcpy(&x, from, sizeof(float) * n);
  return x;
}
template <class N> inline void store(float* to, Vector x, N n) { std::memcpy(to, &x, sizeof(float) * n); }
inline float total(Vector x) {
  float sum = 0;
  for (int i = 0; i < kLanes; i++) sum += x[i];
  return sum;
}


// out (n, outputs) = left (n, inputs) · right (inputs, outputs), plus the bias or what out was, if any. Lines
// of right lie next to each other, left(r, i) at left[r * down + i * along].
struct Product {
  int64_t inputs, down, along, stride, out_stride;
  bool more;

  template <int rows, int columns>
  void tile(const float* left, const float* right, int64_t right_stride, const float* bias, float* out,
            int64_t outputs) const {
    Vector sums[rows][columns];
    for (int r = 0; r < rows; r++)
      for (int c = 0; c < columns; c++) {
        const int64_t at = c * kLanes, used = std::min<int64_t>(kLanes, outputs - at);
        sums[r][c] = bias ? load(bias + at, used) : more ? load(out + r * out_stride + at, used) : Vector{};
      }
    for (int64_t i = 0; i < inputs; i++, left += along, right += right_stride) {
      Vector w[columns];
#pragma GCC unroll 3
      for (int c = 0; c < columns; c++) w[c] = load(right + c * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < rows; r++) {
        const Vector here = all(left[r * down]);
#pragma GCC unroll 3
        for (int c = 0; c < columns; c++) sums[r][c] += here * w[c];
      }
    }
    for (int r = 0; r < rows; r++)
      for (int c = 0; c < columns; c++) {
        const int64_t at = c * kLanes;
        store(out + r * out_stride + at, sums[r][c], std::min<int64_t>(kLanes, outputs - at));
      }
  }

  template <int columns, int rows = kRows>
  void down_rows(int64_t n, const float* left, const float* right, int64_t right_stride, const float* bias,
                 float* out, int64_t outputs) const {
    for (; n >= rows; n -= rows, left += rows * down, out += rows * out_stride)
      tile<rows, columns>(left, right, right_stride, bias, out, outputs);
    if constexpr (rows > 1)
      if (n > 0) down_rows<columns, rows / 2>(n, left, right, right_stride, bias, out, outputs);
  }

  void run(int64_t n, const float* left, int64_t outputs, const float* right, const float* bias, float* out,
           std::vector<float>& room) const {
    int64_t c = 0;
    const auto at = [&](const float* from) { return from ? from + c : nullptr; };
    for (; c + kPanel <= outputs; c += kPanel)
      down_rows<3>(n, left, right + c, stride, at(bias), out + c, kPanel);
    for (; c + kLanes <= outputs; c += kLanes)
      down_rows<1>(n, left, right + c, stride, at(bias), out + c, kLanes);
    if (c == outputs) return;
    const int64_t rest = outputs - c;
    room.assign(std::max<std::size_t>(room.size(), inputs * kLanes), 0.0f);
    for (int64_t i = 0; i < inputs; i++)
      std::memcpy(&room[i * kLanes], right + i * stride + c, sizeof(float) * rest);
    down_rows<1>(n, left, room.data(), kLanes, at(bias), out + c, rest);
  }
};

// The lines of x become n = LayerNorm(x), their rates 1 / σ, and active silu(n).
void norm(int64_t n, int64_t width, float* x, float* rates, float* active) {
  for (int64_t r = 0; r < n; r++, x += width, active += width) {
    Vector sum{}, squares{};
    elementwise(width, [&](int64_t i, auto w) { sum += load(x + i, w); });
    const float mean = total(sum) / width;
    elementwise(width, [&](int64_t i, auto w) {
      const Vector apart = load(x + i, w) - mean;
      squares += apart * apart;
    });
    rates[r] = 1.0f / std::sqrt(total(squares) / width + 1e-5f);
    elementwise(width, [&](int64_t i, auto w) {
      const Vector y = (load(x + i, w) - mean) * rates[r];
      store(x + i, y, w);
      store(active + i, y * sigmoid(y), w);
    });
  }
}

// And back: gradients g by silu(n) become those by the LayerNorm's input, active silu(n).
void norm_back(int64_t n, int64_t width, const float* x, const float* rates, float* g, float* active) {
  for (int64_t r = 0; r < n; r++, x += width, g += width, active += width) {
    Vector sum{}, along{};
    elementwise(width, [&](int64_t i, auto w) {
      const Vector y = load(x + i, w), gate = sigmoid(y), slope = gate * (1.0f + y * (1.0f - gate));
      const Vector here = load(g + i, w) * slope;
      store(active + i, y * gate, w);
      store(g + i, here, w);
      sum += here;
      along += here * y;
    });
    const float mean = total(sum) / width, share = total(along) / width;
    elementwise(width, [&](int64_t i, auto w) {
      store(g + i, (load(g + i, w) - mean - load(x + i, w) * share) * rates[r], w);
    });
  }
}

// Networks of two normed layers of one width: weights (M, inputs, outputs) and biases (M, outputs).
struct Networks {
  int64_t M, N, X, W, Y, x_member, x_row;
  const float *x, *parameters[6];

  const float* weight(int layer, int64_t member) const {
    return parameters[2 * layer] + member * (layer ? W : X) * (layer == 2 ? Y : W);
  }
  const float* bias(int layer, int64_t member) const {
    return parameters[2 * layer + 1] + member * (layer == 2 ? Y : W);
  }
};

std::vector<float> transposed(int64_t rows, int64_t columns, const float* x) {
  std::vector<float> y(rows * columns);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < columns; c++) y[c * rows + r] = x[r * columns + c];
  return y;
}

void add_lines(int64_t n, int64_t width, const float* x, float* sums) {
  for (int64_t r = 0; r < n; r++, x += width)
#pragma omp simd
    for (int64_t i = 0; i < width; i++) sums[i] += x[i];
}

constexpr int64_t kLines = 64;  // of a member, that are worked on together
constexpr int64_t kInputs = 256;  // of a product, whose weights stay in the cache meanwhile

// Products of M members: left (M, rows, inputs), anywhere; right (M, inputs, outputs) and out (M, rows, outputs),
// with their rows each in one piece; and bias (M, outputs), or none.
struct Products {
  int64_t M, rows, inputs, outputs, left_member, down, along, right_member, right_row, out_member, out_row;
  int64_t more;
  const float *left, *right, *bias;
  float* out;
};

}  // namespace

extern "C" {

int lanes_in_panel() { return kPanel; }

int has_bfloat16() { return HAS_BFLOAT16; }

// layers: gates [h, x, u] → r, z; new_h; new_i [x, u] →; the observation head's; the reward head's [h, x] →.
// state (E, M, H + X), actions (E · N, T, U) → rewards (M, T, E · N) and ends (E · N, M, H + X).
void rollout(const Layer* layers, int64_t observation, int64_t reward, int64_t M, int64_t H, int64_t X,
             int64_t U, int64_t E, int64_t N, int64_t T, int residual, int function, const float* state,
             const float* actions, float* rewards, float* ends, int threads) {
  const Layer *gates = layers, *new_h = layers + 1, *new_i = layers + 2, *heads = layers + 3;
  const Function f = static_cast<Function>(function);
  const int64_t R = E * N, S = H + X, all_inputs = S + U;
  // Blocks of about the same size, of whole tiles.
  const int64_t blocks = std::max<int64_t>(1, (R + kBlock - 1) / kBlock);
  const int64_t size = ((R + blocks - 1) / blocks + kRows - 1) / kRows * kRows;
#pragma omp parallel num_threads(threads)
  {
    Room room;
    std::vector<float> here(size * all_inputs), gate(size * 2 * H), h_part(size * H), i_part(size * H);
    std::vector<float> out(size * std::max<int64_t>(X, 1)), earned(size);
#pragma omp for schedule(dynamic, 1) collapse(2)
    for (int64_t m = 0; m < M; m++)
      for (int64_t block = 0; block < blocks; block++) {
        const int64_t first = block * size, n = std::min(size, R - first);
        if (n <= 0) continue;
        for (int64_t r = 0; r < n; r++)
          std::memcpy(&here[r * all_inputs], state + ((first + r) / N * M + m) * S, sizeof(float) * S);
        for (int64_t t = 0; t < T; t++) {
          for (int64_t r = 0; r < n; r++)
            std::memcpy(&here[r * all_inputs + S], actions + ((first + r) * T + t) * U, sizeof(float) * U);
          gates->run(m, n, here.data(), all_inputs, kNone, gate.data(), 2 * H, room);
          new_h->run(m, n, here.data(), all_inputs, kNone, h_part.data(), H, room);
          new_i->run(m, n, here.data() + H, all_inputs, kNone, i_part.data(), H, room);
          for (int64_t r = 0; r < n; r++) {
            float* h = &here[r * all_inputs];
            const float *g = &gate[r * 2 * H], *a = &h_part[r * H], *b = &i_part[r * H];
            elementwise(H, [=](int64_t i, auto w) {
              const Vector reset = sigmoid(load(g + i, w)), update = sigmoid(load(g + H + i, w));
              const Vector fresh = tangent(load(b + i, w) + reset * load(a + i, w));
              store(h + i, fresh + update * (load(h + i, w) - fresh), w);
            });
          }
          network(heads, observation, m, n, here.data(), all_inputs, f, out.data(), X, room);
          for (int64_t r = 0; r < n; r++)
            for (int64_t i = 0; i < X; i++) {
              float& x = here[r * all_inputs + H + i];
              x = residual ? x + out[r * X + i] : out[r * X + i];
            }
          network(heads + observation, reward, m, n, here.data(), all_inputs, f, earned.data(), 1, room);
          std::memcpy(rewards + (m * T + t) * R + first, earned.data(), sizeof(float) * n);
        }
        for (int64_t r = 0; r < n; r++)
          std::memcpy(ends + ((first + r) * M + m) * S, &here[r * all_inputs], sizeof(float) * S);
      }
  }
}

// layers: the actor's, then the critics'. x (R, X) → what K critics say (R, K) of it and the actor's action.
void judge(const Layer* layers, int64_t actor, int64_t critic, int64_t K, int64_t X, int64_t U, int64_t R,
           const float* x, float* said, int threads) {
  const int64_t inputs = X + U, blocks = (R + kBlock - 1) / kBlock;
#pragma omp parallel num_threads(threads)
  {
    Room room;
    std::vector<float> here(kBlock * inputs), action(kBlock * U), q(kBlock);
#pragma omp for schedule(dynamic, 1)
    for (int64_t block = 0; block < blocks; block++) {
      const int64_t first = block * kBlock, n = std::min(kBlock, R - first);
      network(layers, actor, 0, n, x + first * X, X, kNormed, action.data(), U, room);
      for (int64_t r = 0; r < n; r++) {
        std::memcpy(&here[r * inputs], x + (first + r) * X, sizeof(float) * X);
        for (int64_t i = 0; i < U; i++) here[r * inputs + X + i] = std::tanh(action[r * U + i]);
      }
      for (int64_t k = 0; k < K; k++) {
        network(layers + actor, critic, k, n, here.data(), inputs, kNormed, q.data(), 1, room);
        for (int64_t r = 0; r < n; r++) said[(first + r) * K + k] = q[r];
      }
    }
  }
}

// x (M, N, X) → out (M, N, Y), and for the way back both layers' n (2, M, N, W) and 1 / σ (2, M, N). W is a
// whole number of vectors.
void normed_forward(const Networks* nets, float* normed, float* rates, float* out, int threads) {
  const int64_t blocks = (nets->N + kLines - 1) / kLines;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> active(kLines * nets->W), room;
#pragma omp for schedule(static) collapse(2)
    for (int64_t m = 0; m < nets->M; m++)
      for (int64_t block = 0; block < blocks; block++) {
        const int64_t W = nets->W, Y = nets->Y, line = m * nets->N + block * kLines;
        const int64_t n = std::min(kLines, nets->N - block * kLines);
        const float* in = nets->x + m * nets->x_member + block * kLines * nets->x_row;
        float *n0 = normed + line * W, *n1 = n0 + nets->M * nets->N * W;
        Product{nets->X, nets->x_row, 1, W, W, false}.run(n, in, W, nets->weight(0, m), nets->bias(0, m), n0, room);
        norm(n, W, n0, rates + line, active.data());
        Product{W, W, 1, W, W, false}.run(n, active.data(), W, nets->weight(1, m), nets->bias(1, m), n1, room);
        norm(n, W, n1, rates + nets->M * nets->N + line, active.data());
        Product{W, W, 1, Y, Y, false}.run(n, active.data(), Y, nets->weight(2, m), nets->bias(2, m),
                                          out + line * Y, room);
      }
  }
}

// above (M, N, Y), the gradients by out → those by x (M, N, X), and those by weights and biases, which are zero
// at first; either can be left out.
void normed_backward(const Networks* nets, const float* normed, const float* rates, const float* above,
                     float* by_x, float* const* gradients, int threads) {
  const int64_t N = nets->N, X = nets->X, W = nets->W, Y = nets->Y, all_lines = nets->M * N;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t m = 0; m < nets->M; m++) {
    std::vector<float> active(kLines * W), g0(kLines * W), g1(kLines * W), room;
    const auto up2 = transposed(W, Y, nets->weight(2, m)), up1 = transposed(W, W, nets->weight(1, m));
    const auto up0 = by_x ? transposed(X, W, nets->weight(0, m)) : std::vector<float>();
    const auto learn = [&](int layer, int64_t n, int64_t inputs, int64_t outputs, const float* in,
                           int64_t in_row, const float* g) {
      if (!gradients) return;
      Product{n, 1, in_row, outputs, outputs, true}.run(
          inputs, in, outputs, g, nullptr, gradients[2 * layer] + m * inputs * outputs, room);
      add_lines(n, outputs, g, gradients[2 * layer + 1] + m * outputs);
    };
    for (int64_t done = 0; done < N; done += kLines) {
      const int64_t line = m * N + done, n = std::min(kLines, N - done);
      const float *n0 = normed + line * W, *n1 = n0 + all_lines * W, *g2 = above + line * Y;
      Product{Y, Y, 1, W, W, false}.run(n, g2, W, up2.data(), nullptr, g1.data(), room);
      norm_back(n, W, n1, rates + all_lines + line, g1.data(), active.data());
      learn(2, n, W, Y, active.data(), W, g2);
      Product{W, W, 1, W, W, false}.run(n, g1.data(), W, up1.data(), nullptr, g0.data(), room);
      norm_back(n, W, n0, rates + line, g0.data(), active.data());
      learn(1, n, W, W, active.data(), W, g1.data());
      learn(0, n, X, W, nets->x + m * nets->x_member + done * nets->x_row, nets->x_row, g0.data());
      if (by_x) Product{W, W, 1, X, X, false}.run(n, g0.data(), X, up0.data(), nullptr, by_x + line * X, room);
    }
  }
}

// out = left right + bias, or + out if `more`.
void products(const Products* p, int threads) {
  const int64_t blocks = (p->rows + kLines - 1) / kLines;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> room;
#pragma omp for schedule(static) collapse(2)
    for (int64_t m = 0; m < p->M; m++)
      for (int64_t block = 0; block < blocks; block++) {
        const int64_t first = block * kLines, n = std::min(kLines, p->rows - first);
        const float* left = p->left + m * p->left_member + first * p->down;
        const float* right = p->right + m * p->right_member;
        float* out = p->out + m * p->out_member + first * p->out_row;
        for (int64_t done = 0; done < p->inputs; done += kInputs) {
          const bool begins = done == 0;
          const Product part{std::min(kInputs, p->inputs - done), p->down, p->along, p->right_row, p->out_row,
                             !begins || p->more};
          part.run(n, left + done * p->along, p->outputs, right + done * p->right_row,
                   begins && p->bias ? p->bias + m * p->outputs : nullptr, out, room);
        }
      }
  }
}
}
