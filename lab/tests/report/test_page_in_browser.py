"""The report page in a real browser: it loads, moves, plays, and fits the screen."""

import csv
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import dcem
from dcem_lab import study
from dcem_lab.report.charts import Mark, rows
from dcem_lab.report.scales import Scale
from dcem_lab.report.sources import Section
from dcem_lab.report.templates import part

ROOT = Path(__file__).parents[3]
SHOTS = ROOT / "out" / "screenshots"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(sources, tmp_path_factory) -> str:
    return study.write_page(tmp_path_factory.mktemp("page") / "report.html", sources).as_uri()


@pytest.fixture
def opened(browser, address) -> Iterator:
    tab = browser.new_page(viewport={"width": 1440, "height": 900})
    tab.goto(address)
    tab.locator("#unfold").click()
    yield tab
    tab.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_loads_without_errors_and_fits(browser, address, width, scheme):
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said, asked = [], []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url[:30]))
    tab.goto(address)
    tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    beyond = "(e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.table, nav, pre')"
    assert (
        tab.evaluate(f"[...document.body.querySelectorAll('*')].filter({beyond}).map((e) => e.outerHTML)")
        == []
    )
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(19, 22, 26)"
    assert dark == (scheme == "dark")
    SHOTS.mkdir(parents=True, exist_ok=True)
    tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = false; })")
    tab.screenshot(path=SHOTS / f"report-{width}-{scheme}.png", full_page=True)
    assert said == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked)
    tab.close()


def test_a_choice_with_a_long_name_fits_a_phone(browser, address):
    tab = browser.new_page(viewport={"width": 390, "height": 900})
    tab.goto(address)
    tab.evaluate("document.querySelector('select').add(new Option('a method with a long name '.repeat(3)))")
    assert tab.evaluate("document.querySelector('select').getBoundingClientRect().right") < 390
    tab.close()


def test_markup_in_names_does_nothing(browser, tmp_path):
    """In headings, cells, charts and data: it is shown as it is, and what follows is there."""
    hostile = "<!--<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"
    mark = Mark(hostile, "c0", 1.0)
    body = part("table", [{hostile: hostile, "b": hostile}], hostile)
    body += part(
        "panel", hostile, rows(hostile, [(hostile, [mark])], Scale(0, 2), hostile), [("c0", hostile)]
    )
    data = {"some-data": {hostile: [hostile]}}
    path = tmp_path / "page.html"
    path.write_text(
        study.page_of([Section("a", hostile, body, failures=[hostile], data=data)]), encoding="utf-8"
    )
    tab = browser.new_page()
    tab.goto(path.as_uri())
    assert tab.title() == "dcem: an argmin you can train through"
    assert tab.evaluate("document.querySelectorAll('main script, main img').length") == 0
    assert tab.evaluate("JSON.parse(document.getElementById('some-data').textContent)") == data["some-data"]
    assert tab.locator("#a h2").inner_text() == hostile
    assert tab.locator("footer").inner_text().startswith("Built by dcem report")
    tab.close()


@pytest.mark.parametrize("width", [390, 1440])
def test_it_opens_with_the_pictures_and_unfolds(browser, address, width):
    tab = browser.new_page(viewport={"width": width, "height": 900})
    tab.goto(address)
    for seen in ("#regression-0", "#cartpole-latent", "#case .dot", "#summary table"):
        assert tab.locator(seen).first.is_visible(), seen
    assert not tab.locator("#live").is_visible() and not tab.locator("#speed table").first.is_visible()
    tab.locator("nav a", has_text="Speed").click()
    assert tab.locator("#speed > details").evaluate("(fold) => fold.open")
    assert not tab.locator("#live").is_visible()
    tab.locator("#unfold").press("Enter")
    assert tab.locator("details:not([open])").count() == 0 and tab.locator("#live").is_visible()
    tab.locator("#unfold").press("Enter")
    assert tab.locator("main > section > details[open]").count() == 0
    tab.close()


def test_a_link_opens_its_section(browser, address):
    tab = browser.new_page()
    tab.goto(f"{address}#dmc")
    assert tab.locator("#dmc > details").evaluate("(fold) => fold.open")
    assert not tab.locator("#cartpole > details").evaluate("(fold) => fold.open")
    tab.close()


@pytest.mark.parametrize(("motion", "plays"), [("no-preference", True), ("reduce", False)])
def test_films_play_by_themselves_while_they_are_seen(browser, address, motion, plays):
    tab = browser.new_page(reduced_motion=motion)
    tab.goto(address)
    film = tab.locator("#case video").first
    assert film.evaluate("(video) => video.paused")  # it is further down
    film.scroll_into_view_if_needed()
    tab.wait_for_timeout(300)
    assert film.evaluate("(video) => video.paused") == (not plays)
    tab.close()


def test_the_theme_can_be_chosen(opened):
    background = "getComputedStyle(document.body).backgroundColor"
    light = opened.evaluate(background)
    opened.locator("#theme").press("Enter")
    assert opened.evaluate(background) != light
    opened.locator("#theme").click()
    assert opened.evaluate(background) == light


# The live panel


@pytest.mark.parametrize(("k", "tau"), [(1, 1.0), (3, 0.1), (10, 1.0), (19, 5.0), (5, 0.001)])
def test_the_pages_lml_is_ours(opened, k, tau):
    x = torch.randn(20, dtype=torch.float64, generator=torch.Generator().manual_seed(k))
    found = opened.evaluate("([x, k, tau]) => lml(x, k, tau)", [x.tolist(), k, tau])
    torch.testing.assert_close(
        torch.tensor(found, dtype=torch.float64), dcem.lml(x, k, tau), atol=1e-9, rtol=0
    )
    hard = torch.zeros_like(x).index_fill(0, x.topk(k).indices, 1.0)
    assert opened.evaluate("([x, k]) => lml(x, k, 0)", [x.tolist(), k]) == hard.tolist()


def readout(tab) -> dict[str, float]:
    text = tab.locator("#live-readout").inner_text().replace("−", "-")
    parts = r"iteration (\d+) .* = ([\d.]+) .* size ([\d.]+) .* → (-?[\d.]+) .* → ([\d.]+)"
    found = re.search(parts, text)
    assert found, text
    return dict(zip(("iteration", "sum", "size", "mu", "sigma"), map(float, found.groups()), strict=True))


def test_the_live_panel_follows_the_keyboard(opened):
    before = readout(opened)
    assert before["sum"] == 8 and before["size"] > 8
    opened.locator("#live-k").press("ArrowRight")
    assert readout(opened)["sum"] == 9
    opened.locator("#live-tau").press("Home")  # hard top-k
    assert opened.locator("#live-tau-value").inner_text() == "0"
    hard = readout(opened)
    assert hard["sum"] == hard["size"] == 9
    heights = opened.evaluate(
        "[...document.querySelectorAll('#live-weights .bar')].map((b) => Number(b.getAttribute('height')))"
    )
    assert heights == [190] * 9 + [0] * 31
    opened.locator("#live-tau").press("End")
    assert readout(opened)["size"] > 35  # nearly uniform


def test_the_live_panel_searches(opened):
    opened.locator("#live-tau").press("Home")
    for _ in range(6):
        opened.locator("#live-step").press("Enter")
    after = readout(opened)
    assert after["iteration"] == 7 and after["sigma"] < 0.2
    opened.locator("#live-reset").click()
    assert readout(opened)["iteration"] == 1


# Sliders over iterations


def points(tab, figure: str) -> list[float]:
    return tab.evaluate(
        f"[...document.querySelectorAll('#{figure} .points circle')].map((c) => Number(c.getAttribute('cy')))"
    )


def test_the_regression_slider(opened, sources):
    slider = opened.locator("#regression-iteration")
    assert slider.input_value() == "30"  # where the methods differ
    slider.fill("10")
    trained = points(opened, "regression-1")
    assert len(trained) == 20
    slider.press("End")
    moved = points(opened, "regression-1")
    assert max(abs(a - b) for a, b in zip(trained, moved, strict=True)) > 20  # gradient descent walks past
    with (sources.results / "regression" / "gd" / "seed0" / "iterations.csv").open() as file:
        error = float(list(csv.DictReader(file))[-1]["mse"])
    shown = opened.locator("#regression-1-readout").inner_text()
    assert f"after {slider.input_value()} iterations (trained with 10)" in shown
    assert float(shown.split()[1]) == pytest.approx(error, rel=1e-2)
    opened.locator("#regression-seed").select_option("2")
    assert points(opened, "regression-1") != moved
    opened.locator("#regression-1-variant").select_option(label="DCEM")
    assert points(opened, "regression-1") == points(opened, "regression-0")


def test_the_cartpole_slider(opened, sources):
    with (sources.results / "cartpole" / "pictures" / "dcem_samples.csv").open() as file:
        means = [row for row in csv.DictReader(file) if row["kind"] == "mean"]
    slider = opened.locator("#cartpole-iteration")
    assert slider.input_value() == slider.get_attribute("max")  # it shows what the sentence above it says
    slider.press("Home")
    first = points(opened, "cartpole-latent")
    assert len(first) == 3  # two samples and the mean
    for i, row in enumerate(means[:3]):
        assert (
            f"cost of the mean {float(row['cost']):.2f}"
            in opened.locator("#cartpole-dcem-readout").inner_text()
        )
        assert int(slider.input_value()) == i + 1
        slider.press("ArrowRight")
    slider.press("End")
    last = points(opened, "cartpole-latent")
    assert max(last) - min(last) < max(first) - min(first)  # the search closes in
    assert opened.evaluate("document.querySelectorAll('#cartpole-cem .plans path').length") == 2


def test_a_slider_plays_by_itself(opened):
    button = opened.locator("button.play[data-slider=cartpole-iteration]")
    button.click()
    opened.wait_for_function("document.getElementById('cartpole-iteration').value > 2")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"


# Films


def test_every_film_plays(opened):
    films = opened.locator("video")
    assert films.count() == 4
    for i in range(films.count()):
        film = films.nth(i)
        film.evaluate("(video) => { video.muted = true; return video.play(); }")
        opened.wait_for_function("(video) => video.currentTime > 0.3", arg=film.element_handle())
        assert film.evaluate("(video) => [video.videoWidth, video.error]") == [800, None]
    films.first.screenshot(path=SHOTS / "report-film.png")
