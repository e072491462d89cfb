"use strict";
// The panel on DCEM: samples, their soft top-k weights, and the distribution that follows from them.

const sigmoid = (a) => (a >= 0 ? 1 / (1 + Math.exp(-a)) : Math.exp(a) / (1 + Math.exp(a)));

/** The LML projection: weights in [0, 1] that sum to k, large for large x. tau = 0 is the hard top-k. */
function lml(x, k, tau) {
  const order = x.map((_, i) => i).sort((i, j) => x[j] - x[i]);
  if (tau === 0) {
    const weights = x.map(() => 0);
    order.slice(0, k).forEach((i) => { weights[i] = 1; });
    return weights;
  }
  if (k >= x.length) return x.map(() => 1);
  const a = x.map((value) => value / tau);
  const logit = Math.log(k / x.length / (1 - k / x.length));
  // The root of Σ sigmoid(a + nu) = k lies between these; bisection halves the bracket to rounding.
  let low = logit - Math.max(...a), high = logit - Math.min(...a);
  for (let i = 0; i < 200 && low < high; i++) {
    const middle = (low + high) / 2;
    if (middle === low || middle === high) break;
    const sum = a.reduce((total, value) => total + sigmoid(value + middle), 0);
    if (sum < k) low = middle; else high = middle;
  }
  return a.map((value) => sigmoid(value + high));
}

/** Weighted mean and standard deviation. */
function refit(x, w) {
  const sum = w.reduce((a, b) => a + b, 0);
  const mu = x.reduce((total, value, i) => total + w[i] * value, 0) / sum;
  const variance = x.reduce((total, value, i) => total + w[i] * (value - mu) ** 2, 0) / sum;
  return { mu, sigma: Math.sqrt(variance) };
}

/** Values with mean 0 and standard deviation 1, as the solver passes them on. */
function normalized(v) {
  const mean = v.reduce((a, b) => a + b, 0) / v.length;
  const deviation = Math.sqrt(v.reduce((total, value) => total + (value - mean) ** 2, 0) / v.length);
  return v.map((value) => (deviation > 0 ? (value - mean) / deviation : 0));
}

(() => {
  const N = 40, FIRST = { mu: -1.4, sigma: 1.5 }, RANGE = [-4.5, 4.5];
  const objective = (x) => 0.12 * (x - 1.6) ** 2 + 0.9 * (1 - Math.cos(2.4 * (x - 1.6)));
  const at = (id) => document.getElementById(id);
  const names = "http://www.w3.org/2000/svg";
  const shape = (name, attributes, text) => {
    const made = document.createElementNS(names, name);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    if (text !== undefined) made.textContent = text;
    return made;
  };

  // Always the same noise, so that what moves is moved by the reader.
  const noises = (seed) => {
    let state = seed;
    const uniform = () => {
      state = (state + 0x6d2b79f5) | 0;
      let t = Math.imul(state ^ (state >>> 15), 1 | state);
      t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
    return Array.from({ length: N }, () =>
      Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform()));
  };

  let now = FIRST, iteration = 1, next = FIRST;
  // The slider is logarithmic from 0.01 to 10; its left end is 0.
  const temperature = () => {
    const place = Number(at("live-tau").value);
    return place === 0 ? 0 : 10 ** (-2 + (3 * place) / 60);
  };

  const px = (x) => 12 + ((x - RANGE[0]) / (RANGE[1] - RANGE[0])) * 336;
  const curve = (f) => "M" + Array.from({ length: 181 }, (_, i) => RANGE[0] + (i / 180) * (RANGE[1] - RANGE[0]))
    .map((x) => `${px(x).toFixed(1)} ${f(x).toFixed(1)}`).join("L");

  function draw() {
    const tau = temperature(), k = Number(at("live-k").value);
    const x = noises(iteration).map((e) => now.mu + now.sigma * e);
    const v = x.map(objective);
    const w = lml(normalized(v).map((value) => -value), k, tau);
    next = refit(x, w);
    const sum = w.reduce((a, b) => a + b, 0);
    const effective = sum ** 2 / w.reduce((total, value) => total + value ** 2, 0);
    drawSearch(x, v, w);
    drawWeights(v, w, k);
    at("live-tau-value").textContent = tau === 0 ? "0" : tau.toPrecision(2);
    at("live-k-value").textContent = k;
    at("live-readout").textContent =
      `iteration ${iteration} · Σw = ${sum.toFixed(3)} · effective sample size ${effective.toFixed(1)} of ${N} · ` +
      `μ ${now.mu.toFixed(2)} → ${next.mu.toFixed(2)} · σ ${now.sigma.toFixed(2)} → ${next.sigma.toFixed(2)}`;
  }

  function drawSearch(x, v, w) {
    const svg = at("live-search"), base = 232;
    const height = (value) => 150 - Math.min(value, 6) * 24;
    const peak = Math.max(...[now, next].map(({ sigma }) => 1 / Math.max(sigma, 0.12)));
    const bell = ({ mu, sigma }) => (at_) => {
      const s = Math.max(sigma, 0.12);
      return base - (64 * Math.exp(-0.5 * ((at_ - mu) / s) ** 2)) / s / peak;
    };
    const dots = x.map((value, i) => shape("circle", {
      class: "sample", cx: px(Math.min(Math.max(value, RANGE[0]), RANGE[1])).toFixed(1), cy: height(v[i]).toFixed(1),
      r: (1.6 + 4 * Math.sqrt(w[i])).toFixed(2), opacity: (0.25 + 0.75 * w[i]).toFixed(2),
    }));
    svg.replaceChildren(
      shape("title", {}, "The objective with samples, and the distribution before and after"),
      shape("path", { class: "old", d: curve(bell(now)) }),
      shape("path", { class: "new", d: `${curve(bell(next))}` }),
      shape("path", { class: "objective", d: curve((at_) => height(objective(at_))) }),
      ...dots,
      ...[-4, -2, 0, 2, 4].map((tick) =>
        shape("text", { x: px(tick), y: 247, "text-anchor": "middle" }, String(tick).replace("-", "−"))),
    );
  }

  function drawWeights(v, w, k) {
    const order = v.map((_, i) => i).sort((i, j) => v[i] - v[j]);
    const width = 310 / N, height = (value) => 214 - 190 * value;
    const bars = order.map((i, rank) => shape("rect", {
      class: "bar", x: (38 + rank * width + 0.6).toFixed(1), width: (width - 1.2).toFixed(1),
      y: height(w[i]).toFixed(1), height: (214 - height(w[i])).toFixed(1),
    }));
    const edge = 38 + k * width;
    at("live-weights").replaceChildren(
      shape("title", {}, "Weights of the samples, best first"),
      ...[0, 0.5, 1].flatMap((tick) => [
        shape("line", { class: "row", x1: 38, x2: 348, y1: height(tick), y2: height(tick) }),
        shape("text", { x: 31, y: height(tick) + 4, "text-anchor": "end" }, String(tick)),
      ]),
      ...bars,
      shape("path", { class: "hard", d: `M38 24H${edge.toFixed(1)}V214` }),
      shape("text", { x: 38, y: 232 }, "best"),
      shape("text", { x: 348, y: 232, "text-anchor": "end" }, "worst"),
      shape("text", { x: Math.min(edge + 5, 290), y: 36 }, `hard top-${k}`),
    );
  }

  at("live-tau").addEventListener("input", draw);
  at("live-k").addEventListener("input", draw);
  at("live-step").addEventListener("click", () => { now = next; iteration += 1; draw(); });
  at("live-reset").addEventListener("click", () => { now = FIRST; iteration = 1; draw(); });
  draw();
})();
