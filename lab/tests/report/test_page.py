"""The report page: every number comes from a file, and what is not there is said."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from PIL import Image

from dcem_lab import cli, paper, study
from dcem_lab.commands import exits
from dcem_lab.report import claims, markdown, pictures
from dcem_lab.report.charts import Dots, dots
from dcem_lab.report.scales import Scale
from dcem_lab.report.sources import Section, Sources
from dcem_lab.report.templates import code, part
from dcem_lab.suite import cards, numbers
from dcem_lab.suite import section as dmc
from made_up import EPISODES, write_questions, write_record, write_rows


class Text(HTMLParser):
    """The visible text of a page, by section, and the addresses that it loads."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self._words: dict[str, list[str]] = {}
        self._section, self._hidden = "", 0
        self.feed(content)
        self.sections = {name: " ".join(" ".join(words).split()) for name, words in self._words.items()}

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if tag == "section":
            self._section = found["id"]
        self._hidden += tag in ("script", "style")
        self.loaded += [found[key] for key in ("src", "href") if key in found and tag != "a"]

    def handle_endtag(self, tag):
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data):
        if not self._hidden:
            self._words.setdefault(self._section, []).append(data)


@pytest.fixture(scope="module")
def built(sources) -> str:
    return study.build_page(sources)


@pytest.fixture(scope="module")
def text(built) -> dict[str, str]:
    return Text(built).sections


@contextmanager
def changed(path: Path, old: str, new: str) -> Iterator[None]:
    """One number of a file, changed for a while."""
    before = path.read_text()
    assert before.count(old) >= 1, f"{old} is not in {path}"
    path.write_text(before.replace(old, new, 1))
    yield
    path.write_text(before)


# Where numbers come from


EPISODE = "full-cem-100,run0,1000,10,50,"  # the median one
STEPS = "500000,125000,5000.0,,"


@pytest.mark.parametrize(
    ("file", "old", "new", "section", "shown"),
    [
        ("results/regression/gd/seed0/iterations.csv", "\n30.0,", "\n30.0,9", "regression", None),
        ("results/cartpole/baselines/seed0/scores.csv", "pca-2,validation,0,40000,-9.5",
         "pca-2,validation,0,40000,-13.25", "cartpole", "-13.25"),
        ("results/cartpole/closed_loop.csv", ",60,98,97,", ",60,98,83,", "cartpole", "83"),
        ("results/cartpole/baselines/seed0/run.json", '"wall_seconds": 386', '"wall_seconds": 7260',
         "cartpole", "2 h"),
        ("results/dmc/evaluations.csv", f"{EPISODE}500.0", f"{EPISODE}549.5", "dmc", "501 ["),
        ("results/planet/cheetah-run-best/seed0/curve.csv", f"{STEPS}150", f"{STEPS}170", "dmc", "160"),
        ("results/embed/cheetah-run-T5/seed0/curve.csv", "345", "432", "dmc", "432, 40,000"),
        ("results/agent/evaluations.csv", "cheetah-run-value/seed1,152,6,0,680",
         "cheetah-run-value/seed1,152,6,0,671", "value", "671"),
        ("results/agent/peers.csv", "B,hopper-hop,100000,100", "B,hopper-hop,100000,234", "value", "234"),
        ("results/agent/cheetah-run-two-hot/seed0/run.json", '"wall_seconds": 600', '"wall_seconds": 7260',
         "value", "2 h"),
        ("results/embed/cheetah-run-T5/seed0/run.json", '"step": 44', '"step": 99', "dmc", "20%"),
        ("results/dmc/planning.csv", "2345.6", "1987.6", "dmc", "1,988 ms"),
        ("lab/benchmarks/gpu/results/loop.csv", ",15,", ",17,", "speed", "17.00 (85%)"),
        ("benchmarks/results/dcem.csv", "112.25", "654.321", "speed", "654"),
        ("benchmarks/layers/results/layers.csv", "0.0321", "0.0456", "layers", "0.0456"),
        ("benchmarks/embedding/results/embedding.csv", "-6.5", "-9.5", "layers", "-8.00 (-9.50 to -6.50)"),
        ("lab/benchmarks/gpu/results/lml.csv", "0.0123", "0.0777", "speed", "0.0777"),
        ("quick/results/cartpole/shipped.csv", "-10.123", "-7.654", "quick", "-7.65"),
        ("quick/results/dmc/cheetah-run.csv", "612.5", "333.25", "quick", "333"),
    ],
)  # fmt: skip
def test_a_changed_file_changes_the_page(sources, text, file, old, new, section, shown):
    with changed(sources.results.parent / file, old, new):
        after = Text(study.build_page(sources)).sections
    assert {name for name in text if text[name] != after[name]} == {section}
    assert shown is None or after[section].count(shown) > text[section].count(shown)


def test_a_better_best_cost_changes_table_and_summary(sources, text):
    path = sources.results / "cartpole" / "d8-tau1" / "seed0" / "curve.csv"
    *_, last = path.read_text().splitlines()
    with changed(path, last, last.replace(last.split(",")[3], "-18.092")):
        after = Text(study.build_page(sources)).sections
    assert {"summary", "cartpole"} <= {name for name in text if text[name] != after[name]}
    usual = paper.CARTPOLE_FACTORS[8, 1.0] + 0.05
    expected = f"{(-18.092 / paper.CARTPOLE_EXPERT + usual + 1.01 * usual) / 3:.3f}"
    assert expected in after["summary"] and expected not in text["summary"]


def test_the_papers_numbers_come_from_one_module(sources, text, monkeypatch):
    monkeypatch.setitem(paper.CARTPOLE_FACTORS, (2, 1.0), 4.321)
    monkeypatch.setitem(paper.DMC_RETURNS, ("walker-walk", "latent-dcem"), paper.Quartiles(11, 22, 33))
    after = Text(study.build_page(sources)).sections
    assert "4.321" in after["summary"] and "4.321" in after["cartpole"]
    assert "22 [11–33]" in after["summary"]
    assert "4.321" not in text["summary"]


def test_the_same_files_make_the_same_page(sources, built):
    assert study.build_page(sources) == built


# What it is


def test_one_file_that_needs_no_network(built):
    loaded = Text(built).loaded
    assert any(address.startswith("data:video/mp4") for address in loaded)
    assert all(address.startswith("data:") for address in loaded)
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest", built)
    assert len(built.encode()) < 15e6


def test_every_section_has_its_results(text, sources):
    assert [name for name in text if "Not run yet" in text[name]] == ["dmc"]  # PPO, in what is made up here
    assert (
        "dcem train some-experiment preset=some (4 min 4 s on a GPU, 16 cores of a CPU)" in text["regression"]
    )
    assert "dcem train some-experiment preset=some (4 min 4 s on " in text["cartpole"]
    assert "theseus takes" in text["speed"]
    assert "2 h 1 min" in text["dmc"]


def test_an_empty_folder_makes_a_page_that_says_so(tmp_path):
    content = study.build_page(Sources(tmp_path, tmp_path))
    text = Text(content).sections
    assert set(text) >= {
        "case",
        "what",
        "summary",
        "regression",
        "cartpole",
        "dmc",
        "value",
        "speed",
        "layers",
        "limits",
    }
    assert "quick" not in text
    for name, command in (("regression", "dcem train regression"), ("cartpole", "dcem train cartpole-grid"),
                          ("dmc", "dcem train planet"), ("value", "dcem train agent"),
                          ("speed", "make bench"), ("layers", "benchmarks/layers/run.py")):  # fmt: skip
        assert "Not run yet" in text[name] and command in text[name], name
    assert "0 have been measured;" in text["summary"]
    assert text["summary"].count("not run yet") == 11


@pytest.mark.parametrize(
    "missing", ["pictures", "closed_loop.csv", "videos", "one-state-d2-tau1", "baselines/seed0/run.json"]
)
def test_a_part_that_is_missing_leaves_the_rest(sources, missing):
    path = sources.results / "cartpole" / missing
    hidden = path.rename(sources.results / "hidden")
    try:
        assert "improvement factor" in Text(study.build_page(sources)).sections["cartpole"]
    finally:
        hidden.rename(path)


# The command


def test_the_command_writes_the_page(sources, tmp_path, capsys):
    out = tmp_path / "new" / "page.html"
    words = ["--results", sources.results, "--quick", sources.quick, "--out", out,
             "--checkout", sources.checkout]  # fmt: skip
    assert cli.main(["report", *map(str, words)]) == exits.DONE
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert out.as_uri() in capsys.readouterr().out


def test_the_page_is_the_same_whatever_the_locale(sources, built, tmp_path):
    """Files are read and written as UTF-8, also where the system's encoding is ASCII."""
    out = tmp_path / "page.html"
    words = ["report", "--results", sources.results, "--quick", sources.quick, "--out", out,
             "--checkout", sources.checkout]  # fmt: skip
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "dcem_lab", *map(str, words)],
        env=os.environ | plain | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == exits.DONE, done.stderr
    assert "τ = 1" in built and out.read_bytes().decode() == built


def test_the_command_refuses_a_folder_that_is_not_there(tmp_path, capsys):
    assert cli.main(["report", "--results", str(tmp_path / "none")]) == exits.USAGE
    assert "--results must be a folder" in capsys.readouterr().err


# Evaluations


def test_evaluations_beside_the_paper(sources, text):
    found = {(e.task, e.controller): e for e in numbers.read_evaluations(sources.results)}
    full = found["cheetah-run", "full-cem"]
    assert np.median(full.totals) == 701 and full.sampled == "10,000"
    _, low, high = full.interval
    assert 701 - 15 < low < 701 < high < 701 + 15
    table = text["summary"]
    assert "cheetah-run, full CEM: median return 701 [683–714] 701 [676–726] 1 (101 episodes)" in table
    assert re.search(r"cheetah-run, latent DCEM: median return 652 \[592–681\] 900 .{,60}✓ better", table)
    assert re.search(r"walker-walk, full CEM: median return 953 \[920–972\] 700 .{,60}✗ worse", table)
    assert "walker-walk, latent DCEM: median return 861 [761–916] · not run yet" in table


def test_the_single_model_stands_beside_the_paper_too(sources, text):
    path = sources.results / "dmc" / "evaluations.csv"
    before = path.read_text()
    ours = [line for line in before.splitlines() if line.startswith("cheetah-run,full-cem,")]
    single = [line.replace("full-cem", "full-cem-single") for line in ours]
    with changed(path, ours[-1], "\n".join([ours[-1], *single])):
        page = study.build_page(sources)
        found = cards.controller_cards(numbers.read_evaluations(sources.results), {})
    row = "cheetah-run, full-cem-single: median return 701 [683–714] 701 [676–726] 1 (101 episodes)"
    assert row in Text(page).sections["summary"] and "full-cem-single" not in text["summary"]
    assert "the paper: 701 [683–714]" in found["cheetah-run", "full-cem-single"]


def test_no_verdict_hides_two_humps(sources):
    """A third of a controller's episodes fail: its median is better, and that alone is not said."""
    path = sources.results / "dmc" / "evaluations.csv"
    before = path.read_text()
    ours = [line for line in before.splitlines() if line.startswith("cheetah-run,latent-dcem,")]
    worse = [re.sub(r"[^,]+$", "40.5", line) for line in ours[:30]]
    with changed(path, "\n".join(ours), "\n".join([*worse, *ours[30:]])):
        after = Text(study.build_page(sources)).sections
    assert "better, but bimodal 30 around 40, 71 around 915" in after["summary"]
    assert "cheetah-run: latent DCEM either works or fails" in after["limits"]
    assert "episodes that fail: 30 of 101" in after["case"]


def test_the_rule_of_the_verdicts_is_on_the_page(text):
    assert claims.RULE in text["summary"]
    assert "two groups of at least 5% each" in claims.RULE and "less than half of the median" in claims.RULE


def test_pictures_then_verdicts_then_folded_sections(built, text):
    marks = ('id="regression-explorer"', 'id="cartpole-explorer"', "<video", "Returns of hopper-hop",
             'id="summary"', 'id="what"')  # fmt: skip
    order = [built.index(words) for words in marks]
    assert order == sorted(order)
    assert text["case"].count("Predictions should be minima") == 1
    assert not re.search(r"run0|seed0|-T5|dcem train", text["case"] + text["summary"])  # no names of runs
    for name in ("what", "regression", "cartpole", "dmc", "value", "speed", "layers", "limits"):
        assert re.search(rf'<section id="{name}"><details>\s*<summary><h2>', built), name
    assert '<section id="quick"><details open>' in built  # that is what its reader asked for


def test_it_opens_with_the_agents_that_are_filmed_and_all_their_seeds(text):
    assert "the mean returns by seed are 400, 500, 300 on hopper-hop." in text["case"]
    assert "seed 1: 41 episodes, median 500" in text["case"] and "return 432" in text["case"]
    assert "Returns of cheetah-run, plans with a value" in text["value"]  # without a film, below


def test_runs_are_drawn_anew_before_their_episodes():
    """Two runs that differ: the interval of the median reaches from one to the other."""
    apart = {"a": np.full(50, 100.0), "b": np.full(50, 300.0)}
    found = dmc.Evaluation("task", "full-cem", apart, "10", "full CEM").interval
    assert found == (200, 100, 300)


def test_runs_that_answer_a_question_stand_aside(sources):
    columns = ["env_steps", "updates", "seconds", "eval_mean", "eval_median"]
    folder = sources.results / "planet" / "cheetah-run-best-mse" / "seed0"
    write_rows(folder / "curve.csv", columns, [[200_000, 1, 1, 41.2, 43.4]])
    write_record(folder)
    try:
        aside = {one.preset: one.aside for one in numbers.read_trainings(sources.results / "planet")}
        shown = Text(study.build_page(sources)).sections["dmc"]
    finally:
        shutil.rmtree(folder.parent)
    assert aside == {"best": False, "best-mse": True}
    assert "squared errors? model.loss=mse 0 41 43" in shown and "ours, best-mse" not in shown


def test_curves_are_read_at_the_steps_of_others(sources, text):
    cheetah, _ = numbers.read_trainings(sources.results / "planet")
    assert (cheetah.task, cheetah.preset, len(cheetah.curves)) == ("cheetah-run", "best", 2)
    table = text["dmc"]
    assert "ours, best 2 30 150 300 600" in table  # means over two seeds, one apart
    assert "TD-MPC2 3 519 758 844 (1 of 3 seeds) 860 (1 of 3 seeds)" in table
    assert "B their mean 200 600 – –" in table


def test_a_run_that_goes_on_from_another_is_not_counted_by_its_own_steps(sources):
    cheetah, _ = numbers.read_trainings(sources.results / "planet")
    on = {seed: record | {"config": {"source": "cheetah-run"}} for seed, record in cheetah.records.items()}
    trainings = [cheetah, replace(cheetah, preset="annealed", records=on)]
    phase = dmc._phase("planet", sources.results, trainings)
    assert "ours, best" in phase["curves"] and "ours, annealed" not in phase["curves"]
    assert "cheetah-run, annealed, 0" in [row["task, variant, seed"] for row in phase["runs"]]
    assert "ours, annealed" not in str(dmc._beside_others(sources.results, trainings))


def test_a_single_evaluation_can_be_seen(sources):
    (latent,) = numbers.read_trainings(sources.results / "embed")
    curve = {name: values[:1] for name, values in latent.curves[0].items()}
    drawn = dmc._curves([replace(latent, curves=[curve])], "latent-dcem", "latent DCEM", "eval_median")
    assert re.search(r'd="M[\d.]+ ([\d.]+)L[\d.]+ \1"', drawn)


def test_phase_two_has_curves_and_what_became_of_its_runs(text):
    assert "cheetah-run, T5, 0 44,000 9% 321, 345 345, 40,000 8.2 2 min 11 s a GPU" in text["dmc"]
    assert "phase 2, cheetah-run, T5, seed0 dcem train embed from=a" in text["dmc"]


def test_the_papers_claims_have_their_lines(sources, text):
    listed = markdown.by_heading(sources.docs / "claims.md")[1][dmc.CLAIMS]
    lines = [line for line in listed.splitlines() if line.startswith("| ")]
    assert len(lines) > 10
    shown = text["dmc"].partition(dmc.CLAIMS)[2]
    for line in lines[2:]:
        assert line.split(" | ")[0].removeprefix("| ") in shown


def test_what_failed_on_the_control_suite_is_said(tmp_path):
    write_questions(tmp_path)
    totals = {"latent-dcem": [900.0] * 30 + [100.0] * 20, "full-cem": [900.0, 850.0] * 5}
    rows = [
        ["walker-walk", name, "a", 1, 1, i, x] for name, them in totals.items() for i, x in enumerate(them)
    ]
    write_rows(tmp_path / "dmc" / "evaluations.csv", EPISODES, rows)
    for name, mean in (("replay", 568), ("replay-offline", 188)):
        folder = tmp_path / "embed" / f"cheetah-run-{name}" / "seed0"
        write_rows(folder / "curve.csv", ["env_steps", "eval_mean"], [[100, 300], [200, mean]])
        write_record(folder)
    evaluations = numbers.read_evaluations(tmp_path)
    sits, offline = dmc.failures(evaluations, numbers.read_trainings(tmp_path / "embed"))
    assert (
        "walker-walk: latent DCEM either works or fails. Of 50 episodes, 20 around 100, 30 around 900" in sits
    )
    assert "the mean is 580" in sits
    assert (
        "cheetah-run" in offline
        and "Its mean return is 188. Online, after as many updates, it is 568." in offline
    )


def test_plans_stand_beside_what_they_earn(sources, text):
    machine = "a CPU (2 threads, load before 0.5)"
    assert f"Measured on {machine}." in text["dmc"]
    assert "cheetah-run, full CEM 10,000 701 2,346 ms 34,568 ms not run not run" in text["dmc"]
    # That name was evaluated with more trajectories, in what is made up here.
    assert "cheetah-run, full-cem-100 1,000 no evaluation 77.7 ms 889 ms" in text["dmc"]
    path = sources.results / "dmc" / "planning.csv"
    before = path.read_text()
    path.write_text(before + "cheetah-run,full-cem,cheetah-run,1000,10,10000,1.42,8.7,cuda,a GPU,8,0.1\n")
    try:
        first = numbers.planning_rows(sources.results)[0]
    finally:
        path.write_text(before)
    assert (first["CPU, one state"], first["GPU, one state"]) == ("2,346 ms", "1.42 ms")
    assert first["measured on"] == f"{machine}, a GPU"


def test_a_step_of_training_in_parts(text):
    parts = "15.00 (75%) 20.00 (100%) 1.00 (5%) 0.25 (1%) 20.0 3,333 10 min"
    assert f"cheetah-run planet, best an imaginary GPU {parts}" in text["speed"]


def test_every_episode_is_a_dot_and_failures_have_their_colour():
    returns = np.array([*np.full(30, 90.0), *np.linspace(800, 900, 70)])
    row = Dots("100 episodes", returns, low=400)
    drawn = dots("Returns", [row], Scale(0, 1000), "return")
    (fine,), (fails,) = (re.findall(rf'd="([^"]+)" class="dot {color}"', drawn) for color in ("c0", "c1"))
    assert (fine.count("h0"), fails.count("h0")) == (70, 30)
    heights = {float(y) for y in re.findall(r"M[\d.]+ ([\d.]+)h0", fails)}
    assert len(heights) == 30  # equal returns stand on each other


def test_a_column_of_a_hundred_dots_stays_low():
    returns = np.full(100, 500.0)
    drawn = dots("Returns", [Dots("100 episodes", returns)], Scale(0, 1000), "return")
    heights = sorted({float(y) for y in re.findall(r"M[\d.]+ ([\d.]+)h0", drawn)})
    assert len(heights) == 100 and heights[-1] - heights[0] == pytest.approx(100)


def test_a_film_stands_beside_the_returns_of_its_controller(sources):
    [film] = cards.read_films(sources.results / "dmc" / "videos")["cheetah-run", "latent-dcem"]
    evaluations = numbers.read_evaluations(sources.results)
    found = cards.controller_cards(evaluations, {("cheetah-run", "latent-dcem"): [film]})
    card = found["cheetah-run", "latent-dcem"]
    assert film.address in card and "return 123, a failure" in card and "101 episodes, median 900" in card
    assert "the filmed episode: 123" in card and "the paper: 652 [592–681]" in card
    assert "video" not in found["walker-walk", "full-cem"]


# Its parts


@given(st.text(), st.text(min_size=1))
def test_text_is_escaped(name, words):
    class Reader(HTMLParser):
        found, labels = "", ()

        def handle_data(self, data):
            self.found += data

        def handle_starttag(self, tag, attrs):
            assert tag in {"div", "table", "thead", "tbody", "tr", "th", "td", "span"}
            self.labels += tuple(value for key, value in attrs if key == "data-label")

    reader = Reader()
    reader.feed(str(part("table", [{"": "first", name or "x": words}])))
    reader.close()
    if not {"\r", "\0"} & {*name, *words}:  # which HTML changes
        assert words in reader.found and reader.labels == (name or "x",)


HOSTILE = "<!--<script>alert(1)</script><b>\u2028"


def test_data_cannot_end_its_script():
    built = study.page_of([Section("a", "A", Markup(), data={"some-data": {"a": HOSTILE}})])
    inner = built.partition('id="some-data">')[2].partition("</script>")[0]
    assert json.loads(inner) == {"a": HOSTILE}
    assert "<" not in inner


def test_markup_in_names_is_text():
    shown = part("table", [{"name": HOSTILE, "cell": HOSTILE, "code": code(HOSTILE)}], HOSTILE)
    assert "<!--" not in shown and "<b>" not in shown and shown.count("&lt;!--") == 4
    assert "<b>" not in markdown.render(f"{HOSTILE}\n\n| a | b |\n| --- | --- |\n| {HOSTILE} | $<b>$ |")


def test_a_surface_is_a_picture_with_light_for_low():
    values = np.array([[0.0, 1.0], [2.0, 3.0]])
    address = pictures.shades(values, 0, 3)
    picture = np.asarray(Image.open(BytesIO(base64.b64decode(address.split(",")[1]))).convert("L"), int)
    assert picture.shape == (2, 2)
    # The first row is at the bottom.
    assert picture[1, 0] > picture[1, 1] > picture[0, 0] > picture[0, 1]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_inside_their_scale(low, width):
    scale = Scale(low, low + width)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 12
    slack = 1e-6 * max(width, abs(low))
    assert all(low - slack <= value <= low + width + slack for value, _ in ticks)


def test_scales_stop_at_their_ends():
    scale = Scale(1e-2, 1e2, log=True).between(100, 200)
    assert [scale(v) for v in (1e-9, 1e-2, 1, 1e2, 1e9)] == pytest.approx([100, 100, 150, 200, 200])


def test_markdown_of_the_deviations():
    shown = markdown.render(
        "Some *text*.\n\n| a | b | c |\n| --- | --- | --- |\n"
        "| $\\Pi(v/\\tau)$ | [x](y.md) `c<d` $[0, 1]^d$, $h_{t+1}$ | |"
    )
    assert "<em>text</em>" in shown and "Π(v/τ)" in shown and "<code>c&lt;d</code>" in shown
    assert "[0, 1]<sup>d</sup>" in shown and "h<sub>t+1</sub>" in shown
    assert '<th scope="row"><i' in shown and '<td data-label="b"><span>x <code>' in shown
    assert '<td data-label="c"></td>' in shown  # a card leaves out a cell that is empty
    assert "href" not in shown
    assert '<a href="https://a.b">p</a>' in markdown.render("[p](https://a.b)")
