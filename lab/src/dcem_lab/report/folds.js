"use strict";
// Sections are collapsed: a link to one opens it, a button and printing open all. Videos play while they are visible.
(() => {
  const folds = [...document.querySelectorAll("main details")];
  const button = document.getElementById("unfold");
  const all = (open) => {
    folds.forEach((fold) => { fold.open = open; });
    button.setAttribute("aria-expanded", open);
    button.textContent = open ? "Close all sections" : "Open all sections";
  };
  const follow = () => {
    const fold = document.getElementById(location.hash.slice(1))?.querySelector(":scope > details");
    if (fold) fold.open = true;
  };
  button.addEventListener("click", () => all(button.getAttribute("aria-expanded") === "false"));
  addEventListener("hashchange", follow);
  addEventListener("beforeprint", () => all(true));
  follow();

  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const seen = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
    if (isIntersecting) target.play().catch(() => {});
    else target.pause();
  }));
  document.querySelectorAll("video").forEach((video) => seen.observe(video));
})();
