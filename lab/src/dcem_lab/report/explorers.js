"use strict";
// Figures with a slider over the iterations of a search.
(() => {
  const at = (id) => document.getElementById(id);
  const names = "http://www.w3.org/2000/svg";
  const data = (id) => (at(id) ? JSON.parse(at(id).textContent) : null);
  const made = (name, attributes) => {
    const element = document.createElementNS(names, name);
    Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
    return element;
  };
  // The scales that the figure was drawn with; points beyond an axis stop at its end.
  const scales = (svg) => ["x", "y"].map((axis) => {
    const [low, high, first, last] = svg.dataset[axis].split(",").map(Number);
    return (value) => first + ((Math.min(Math.max(value, low), high) - low) / (high - low)) * (last - first);
  });
  const path = (svg, xs, ys) => {
    const [x, y] = scales(svg);
    return "M" + xs.map((value, i) => `${x(value).toFixed(1)} ${y(ys[i]).toFixed(1)}`).join("L");
  };
  const circles = (svg, points, radius) => {
    const [x, y] = scales(svg);
    return points.map(([a, b]) => made("circle", { cx: x(a).toFixed(1), cy: y(b).toFixed(1), r: radius }));
  };

  function regression(found) {
    const slider = at("regression-iteration"), seed = at("regression-seed");
    const draw = () => {
      const iteration = Number(slider.value);
      at("regression-iteration-value").textContent = iteration;
      [0, 1].forEach((side) => {
        const svg = at(`regression-${side}`);
        const variant = found.variants[at(`regression-${side}-variant`).value];
        const which = Math.min(Number(seed.value), variant.predictions.length - 1);
        const step = Math.min(iteration, variant.predictions[which].length) - 1;
        const answers = variant.predictions[which][step];
        svg.querySelector(".surface").setAttribute("href", variant.surfaces[which]);
        svg.querySelector(".target").setAttribute("d", path(svg, found.x, found.target));
        svg.querySelector(".points").replaceChildren(...circles(svg, found.x.map((x, i) => [x, answers[i]]), 2.4));
        const beside = step + 1 === variant.trained ? "as trained" : `trained with ${variant.trained}`;
        at(`regression-${side}-readout`).textContent =
          `error ${variant.errors[which][step].toPrecision(3)} after ${step + 1} iterations (${beside})`;
      });
    };
    [slider, seed, at("regression-0-variant"), at("regression-1-variant")]
      .forEach((control) => control.addEventListener("input", draw));
    draw();
  }

  function cartpole(found) {
    const slider = at("cartpole-iteration");
    const draw = () => {
      const iteration = Number(slider.value);
      at("cartpole-iteration-value").textContent = iteration;
      ["cem", "dcem"].forEach((method) => {
        const svg = at(`cartpole-${method}`), step = found[method][iteration - 1];
        const steps = step.mean.map((_, i) => i);
        const plans = step.plans.map((plan) => made("path", { d: path(svg, steps, plan) }));
        svg.querySelector(".plans").replaceChildren(...plans);
        svg.querySelector(".mean").setAttribute("d", path(svg, steps, step.mean));
        at(`cartpole-${method}-readout`).textContent =
          `${step.sampled.toLocaleString("en")} trajectories sampled, cost of the mean ${step.cost.toFixed(2)}`;
      });
      const svg = at("cartpole-latent"), step = found.dcem[iteration - 1];
      const center = circles(svg, [step.center], 6)[0];
      center.setAttribute("class", "center");
      svg.querySelector(".points").replaceChildren(...circles(svg, step.z, 2.6), center);
      at("cartpole-latent-readout").textContent = `mean at (${step.center.map((z) => z.toFixed(2)).join(", ")})`;
    };
    slider.addEventListener("input", draw);
    draw();
  }

  // A play button moves its slider until it is pressed again or the end is reached.
  document.querySelectorAll("button.play").forEach((button) => {
    const slider = at(button.dataset.slider);
    let timer = null;
    const stop = () => {
      clearInterval(timer);
      timer = null;
      button.textContent = "▶ play";
      button.setAttribute("aria-pressed", "false");
    };
    button.addEventListener("click", () => {
      if (timer !== null) { stop(); return; }
      if (slider.value === slider.max) slider.value = slider.min;
      button.textContent = "❚❚ pause";
      button.setAttribute("aria-pressed", "true");
      timer = setInterval(() => {
        slider.value = Number(slider.value) + 1;
        slider.dispatchEvent(new Event("input"));
        if (slider.value === slider.max) stop();
      }, 450);
    });
  });

  const of_regression = data("regression-data"), of_cartpole = data("cartpole-data");
  if (of_regression) regression(of_regression);
  if (of_cartpole) cartpole(of_cartpole);
})();
