"""The documentation holds: tables agree with the results, commands with the command line, notebooks run."""

import doctest
import importlib
import itertools
import json
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

import dcem
import dcem.systems
import dcem_lab
import made_up
from dcem_lab import cli, experiments
from dcem_lab.commands.exits import EXIT_CODES
from dcem_lab.commands.launchers import LAUNCHERS
from dcem_lab.commands.train import Options
from dcem_lab.report import documents
from dcem_lab.runs.config import meant_by
from dcem_lab.runs.settings import known_settings
from dcem_lab.study import tables
from printed import alike, outputs

pytestmark = pytest.mark.docs
ROOT = Path(__file__).parents[2]
OFFLINE = "cheetah-run-T5-tau0.2-replay-offline"
PAGES = tables.pages(ROOT)
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
BASH = re.compile(r"^```bash\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(dcem [^`]+)`")
GENERATED = re.compile(r"<!-- (table [\w-]+|measured): begin -->.*?<!-- \1: end -->", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


# Tables


def rewritten(text: str, checkout: Path) -> str:
    return documents.rewritten(text, tables.TABLES, tables.sources_in(checkout))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_tables_agree_with_the_results(page):
    text = page.read_text()
    assert rewritten(text, ROOT) == text, f"{name(page)} is out of date: run `make tables`"


def test_the_readme_s_table_follows_the_files(tmp_path):
    """Change a number in a file, and the table changes with it."""
    for part in (
        "lab/results/regression",
        "lab/results/cartpole",
        "lab/results/dmc",
        "lab/results/agent",
        "benchmarks/results",
        "benchmarks/optimisers/results",
        "benchmarks/layers/results",
        "lab/benchmarks/gpu/results",
    ):
        shutil.copytree(ROOT / part, tmp_path / part)
    shutil.copy(ROOT / "lab/results/questions.json", tmp_path / "lab/results")
    text = (ROOT / "README.md").read_text()
    assert "<!-- table headline: begin -->" in text
    assert rewritten(text, tmp_path) == rewritten(text, ROOT)
    path = tmp_path / "benchmarks/results/dcem.csv"
    rows = path.read_text().splitlines()
    cells = rows[1].split(",")
    assert cells[:3] == ['"quadratic', ' B=1"', "dcem.DCEM"]
    cells[7] = "777.0"  # forward+backward ms
    path.write_text("\n".join([rows[0], ",".join(cells), *rows[2:]]) + "\n")
    assert "| 777 ms |" in rewritten(text, tmp_path)
    (tmp_path / "lab/results/dmc/evaluations.csv").write_text(
        "task,controller,run,samples,iterations,episode_seed,total\n"
        "walker-walk,latent-dcem-ppo,a,100,10,0,812.0\nwalker-walk,latent-dcem-ppo,a,100,10,1,816.0\n"
    )
    assert "fine-tuned: return over 100 episodes | median 814, mean 814 | the paper: median 892" in rewritten(
        text, tmp_path
    )
    with (tmp_path / "lab/results/dmc/evaluations.csv").open("a") as table:
        table.write("walker-walk,latent-dcem-ppo-seed-1,b,100,10,0,700.0\n")
    assert "return over 100 episodes | 2 seeds: medians 814, 700; means 814, 700 |" in rewritten(
        text, tmp_path
    )
    shutil.rmtree(tmp_path / "lab/results/agent")
    made_up.write_agents(tmp_path / "lab/results")
    renewed = rewritten(text, tmp_path)
    assert "Cheetah after 500,000 steps: 900, 700" in renewed
    assert "Cheetah: A 820, TD-MPC2 758" in renewed


@pytest.mark.parametrize(
    ("table", "file", "column", "value", "shown"),
    [
        ("loop", "lab/benchmarks/gpu/results/loop.csv", "env_steps_per_s", "12345.6", "| 12,346 | 3 min |"),
        ("loop", "lab/benchmarks/results/loop.csv", "plan", "1234.5", "| 1234.50 ("),
        ("planning", "lab/results/dmc/planning.csv", "ms_16", "9876.5", "| 9,876 ms |"),
        ("ppo", "lab/results/ppo/cheetah-run-T5/seed0/curve.csv", "eval_median", "2345.6", "| 2346, "),
        (
            "embed-questions",
            f"lab/results/embed/{OFFLINE}/seed0/curve.csv",
            "eval_mean",
            "2345.6",
            "| 2346 |",
        ),
        (
            "ppo-questions",
            "lab/results/ppo/cheetah-run-20-steps-decoder/seed0/curve.csv",
            "eval_mean",
            "2345.6",
            "| 2346 |",
        ),
    ],
)
def test_a_table_follows_its_file(tmp_path, table, file, column, value, shown):
    for part in (
        "lab/results/dmc",
        "lab/results/embed",
        "lab/results/ppo",
        "lab/benchmarks/results",
        "lab/benchmarks/gpu/results",
    ):
        shutil.copytree(ROOT / part, tmp_path / part)
    shutil.copy(ROOT / "lab/results/questions.json", tmp_path / "lab/results")
    assert f"<!-- table {table}: begin -->" in (ROOT / "lab" / "docs" / "lab-log.md").read_text()
    assert shown not in documents.markdown(tables.TABLES[table](tables.sources_in(tmp_path)))
    header, first, *rest = (tmp_path / file).read_text().splitlines()
    cells = first.split(",")
    cells[header.split(",").index(column)] = value
    (tmp_path / file).write_text("\n".join([header, ",".join(cells), *rest]) + "\n")
    assert shown in documents.markdown(tables.TABLES[table](tables.sources_in(tmp_path)))


def test_tables_of_optimisers_follow_their_files(tmp_path):
    folder = tmp_path / "benchmarks/optimisers/results"
    folder.mkdir(parents=True)
    sources = tables.sources_in(tmp_path)
    (folder / "summary.csv").write_text(
        "optimiser,dimension,budget,all,separable,moderate,ill-conditioned,multimodal,weak structure\n"
        "cmaes,20,1000,0.501,0.1,0.2,0.3,0.4,0.5\npycma CMA-ES,20,1000,0.515,0.6,0.7,0.8,0.9,1.0\n"
    )
    row = next(row for row in tables.TABLES["optimisers"](sources) if row["evaluations"] == "20,000")
    assert (row["`CMAES()`"], row["pycma"], row["`DCEM()`"]) == ("0.501", "0.515", documents.NOT_MEASURED)
    row = tables.TABLES["optimisers-groups"](sources)[-1]
    assert (row["functions"], row["`CMAES()`"], row["pycma"]) == ("weak structure", "0.5", "1.0")
    (folder / "ratios.csv").write_text(
        "dimension,budget,group,cmaes,pycma CMA-ES,runs a function,ratio,low,high\n"
        "20,100,all,0.1,0.2,5 and 5,0.5,0.4,0.6\n20,1000,all,0.5,0.4,15 and 5,1.25,1.20,1.30\n"
    )
    (row,) = tables.TABLES["optimisers-ratios"](sources)
    assert list(row.values()) == ["20", "all", "0.5", "0.4", "1.25", "[1.20, 1.30]", "15 and 5"]
    assert tables.TABLES["refine"](sources) == []
    (folder / "refine.csv").write_text(
        "problem,quality,solver,evaluations,with Refine(),times fewer\n"
        "sphere,1e-6,CMAES,1100,377,2.9\nellipsoid,1e-6,DCEM,more,more,\n"
    )
    (row,) = tables.TABLES["refine"](sources)
    assert list(row.values()) == ["sphere, 1e-6", "CMAES", "1,100", "377", "2.9"]


def test_recipes_are_compared_after_as_many_steps(tmp_path):
    """Not by their last evaluations, nor by lines of the log that have none."""
    made_up.write_questions(tmp_path / "lab/results")
    folder = tmp_path / "lab/results/planet/cheetah-run-best-mse"
    curve = "env_steps,updates,seconds,return,eval_mean,eval_median\n"
    for seed, lines in {"0": "200000,1,1,5,,\n200000,1,1,5,41.2,43.4\n400000,2,2,5,50,50\n", "1": ""}.items():
        (folder / f"seed{seed}").mkdir(parents=True)
        (folder / f"seed{seed}" / "run.json").write_text("{}")
        (folder / f"seed{seed}" / "curve.csv").write_text(curve + (lines or "100000,1,1,5,30,30\n"))
    (row,) = tables.TABLES["planet-questions"](tables.sources_in(tmp_path))
    assert list(row.values())[1:] == ["`model.loss=mse`", "0", "41", "43"]


def test_the_papers_preset_is_taken_apart_seed_by_seed(tmp_path):
    """A row a change; its runs are not among the others of phase 1."""
    results = tmp_path / "lab/results"
    made_up.write_questions(results)
    columns = ["env_steps", "updates", "seconds", "eval_mean", "eval_median"]
    for name, mean in {"": 20, "-gelu": 30}.items():
        for seed in range(2):
            folder = results / "planet" / f"cheetah-run-paper{name}" / f"seed{seed}"
            rows = [[100_000, 1, 1, 7, 7], [200_000, 2, 2, mean + seed, mean - seed]]
            made_up.write_rows(folder / "curve.csv", columns, rows)
            made_up.write_record(folder)
    rows = tables.TABLES["paper-preset"](tables.sources_in(tmp_path))
    assert [list(row.values())[1:] for row in rows] == [
        ["nothing", "0, 1", "20, 21", "20, 19"],
        ["`model.activation=gelu`", "0, 1", "30, 31", "30, 29"],
    ]
    others = tables.TABLES["planet"](tables.sources_in(tmp_path))
    assert {row["variant"] for row in others} == {"paper"}


def test_gains_are_on_episodes_that_begin_alike(tmp_path):
    """Also where they are not in the same order, or not all there."""
    made_up.write_questions(tmp_path / "lab/results")
    path = tmp_path / "lab/results/dmc/evaluations.csv"
    path.parent.mkdir(parents=True)
    rows = [f"cheetah-run,latent-dcem,a,100,5,{seed},{100 * seed}" for seed in range(9)]
    rows += [f"cheetah-run,latent-dcem-ppo,b,100,5,{seed},{100 * seed + 7}" for seed in range(12, 2, -1)]
    path.write_text("\n".join(["task,controller,run,samples,iterations,episode_seed,total", *rows]) + "\n")
    (row,) = tables.TABLES["finetuned"](tables.sources_in(tmp_path))
    assert list(row.values())[2:] == ["6", "550", "557", "550", "557", "+7 to +7"]


def test_without_results_a_table_says_so(tmp_path):
    text = rewritten((ROOT / "README.md").read_text(), tmp_path)
    assert text.count(documents.NOT_MEASURED) >= 8
    assert documents.markdown(tables.TABLES["planet"](tables.sources_in(tmp_path))) == "*Not measured yet.*"


def test_an_unknown_table_is_named():
    with pytest.raises(ValueError, match="got 'nope'"):
        rewritten("<!-- table nope: begin -->\n<!-- table nope: end -->", ROOT)


# Commands


def commands(page: Path) -> list[str]:
    """Every `dcem …` of a page, in blocks and in the text, without those that leave something out (…)."""
    text = page.read_text()
    blocks = "".join(BASH.findall(text)).replace("\\\n", " ")
    found = [line.strip().removeprefix("until ") for line in blocks.splitlines()] + INLINE.findall(text)
    found = [line.split(";")[0].split(" #")[0] for line in found if line.startswith(("dcem ", "until dcem "))]
    return [
        line
        for line in found
        if not re.search(r"…|\.\.\.|COMMAND|EXPERIMENT|\[--|DIR|RUN_OR|--name NAME", line)
    ]


def check(line: str) -> None:
    """An error unless the command line would take it."""
    _, command, *words = shlex.split(line)
    if command.startswith("-"):
        return
    assert command in cli.COMMANDS, line
    if not words:  # only its name
        return
    module = importlib.import_module(f"dcem_lab.commands.{cli.COMMANDS[command][0]}")
    if command != "train":
        if command != "bench":
            module._parser().parse_args([word for word in words if word not in ("-h", "--help")] or ["x"])
        return
    experiment, *rest = words
    if "." in experiment:  # a module of the reader's
        return
    loaded = experiments.load(experiment)
    settings = known_settings(loaded.Config)
    launcher = next((word for word in rest if word.startswith("launcher=")), "launcher=local").split("=")[1]
    options = {*Options.__dataclass_fields__, *LAUNCHERS[launcher].__dataclass_fields__}
    for word in rest:
        key = word.split("=")[0]
        if not word.startswith("-") and key not in options:
            name = "source" if key == "from" else key
            assert len(meant_by(name, settings)) == 1, f"{line}: no setting {key}"
        if key == "preset":
            assert word.split("=")[1] in loaded.PRESETS, line


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_are_ones_that_the_command_line_takes(page):
    for line in commands(page):
        check(line)


def test_a_wrong_command_would_be_found():
    assert len([line for page in PAGES for line in commands(page)]) > 60
    for wrong in ("dcem train planet tsk=x", "dcem train embed preset=bset", "dcem eval x --episode 3"):
        with pytest.raises((AssertionError, SystemExit)):
            check(wrong)


def test_exit_codes_are_documented_as_they_are():
    text = (ROOT / "lab" / "docs" / "commands.md").read_text()
    codes = re.findall(r"^ *(\d+)  (.+)$", EXIT_CODES, re.MULTILINE)
    assert len(codes) == 4
    for code, meaning in codes:
        assert f"| {code} | {meaning} |" in text


def test_every_command_is_documented():
    text = (ROOT / "lab" / "docs" / "commands.md").read_text()
    for command in cli.COMMANDS:
        assert f"| `dcem {command}" in text


# Links, notebooks, the whole


def test_the_contributors_map_names_every_folder_and_module():
    text = (ROOT / "CONTRIBUTING.md").read_text().split("```")[3]
    for package in ("src/dcem", "lab/src/dcem_lab"):
        block = text[text.index(f"{package}/") :].split("\n", 1)[1]
        named = {line.split()[0] for line in block.splitlines() if line.startswith("  ")}
        there = {
            path.name + "/" * path.is_dir()
            for path in (ROOT / package).iterdir()
            if not path.name.startswith("__") and path.name != "py.typed"
        }
        assert there <= named, f"CONTRIBUTING.md does not name {there - named}"
    for line in text.splitlines():
        if line and not line.startswith(" "):
            assert (ROOT / line.split()[0]).is_dir(), line
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith((".", "_"))}
    assert folders - {"out", "runs", "dist"} <= {line.split("/")[0] for line in text.splitlines() if line}


def test_walks_lead_past_files_that_are_there():
    library, lab = (ROOT / "docs" / "walks.md").read_text().split("## A training step", 1)
    for text, folder in ((library, "src/dcem"), (lab, "lab/src/dcem_lab")):
        named = re.findall(r"`([\w/]+\.py)`", text)
        assert len(named) > 10
        for file in named:
            assert file == "numbers.py" or (ROOT / folder / file).exists(), file


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        if not target.startswith(("http", "#")):
            assert (page.parent / target.split("#")[0]).exists(), f"{name(page)}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_is_read_in_minutes(page):
    """Generated tables aside; the lab log is a record, not a page to read."""
    words = GENERATED.sub("", page.read_text()).split()
    assert len(words) <= 1500 or page.name.startswith("lab-log")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name)
def test_a_line_of_a_paragraph_does_not_begin_a_list(page):
    """A line that begins with `1.` would: Markdown lets such a list interrupt a paragraph."""
    lines = page.read_text().splitlines()
    for before, line in itertools.pairwise(lines):
        assert not (re.match(r"1[.)] ", line) and before.strip()), f"{name(page)}: {line}"


def test_the_reference_has_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text()
    for module in (dcem, dcem.control, dcem.distributions, dcem.solvers, dcem.systems):
        missing = [public for public in module.__all__ if not re.search(rf"\b{public}\b", text)]
        assert not missing, f"docs/api.md lacks {missing} of {module.__name__}"


def test_every_page_is_reached_from_the_front_page():
    """By the tree of contents, which has each once."""
    front = ROOT / "docs" / "index.md"
    trees = re.findall(r"^```{toctree}\n(.*?)^```", front.read_text(), re.DOTALL | re.MULTILINE)
    listed = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    pages = {(front.parent / f"{line}.md").resolve() for line in listed}
    assert pages == {*PAGES} - {front, ROOT / "README.md"}
    assert len(trees) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_notebooks_run(path, tmp_path, monkeypatch, capsys):
    """Plain Python in every cell, so that no kernel is needed here."""
    monkeypatch.chdir(tmp_path)
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    notebook = json.loads(path.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    namespace: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"{path.name}, code cell {number + 1}", "exec"), namespace)
    assert len(plt.get_fignums()) >= 2
    plt.close("all")
    printed = capsys.readouterr().out
    if path.stem == "argmin":
        assert namespace["last"] < 0.2 * namespace["first"]
        assert "found [1.0, -1.0]" in printed
    elif path.stem == "from_scratch":
        assert "they agree: True True" in printed
        found = dict(zip(namespace["taus"], namespace["found"], strict=True))
        assert found[0.3] > max(found[0.01], found[3.0])
        sources = ["".join(cell["source"]) for cell in cells]
        made = [text for text in sources if "def soft_topk" in text or "def dcem_from_scratch" in text]
        assert len([line for text in made for line in text.splitlines() if line.strip()]) <= 40
    else:
        assert "upright at the end: True" in printed
        assert abs(namespace["gravity"].item() - 10) < 1.5
        assert namespace["costs"]["latent"] < namespace["costs"]["full"]


def test_notebooks_show_what_they_print():
    """Kept as they ran, from top to bottom, without an error."""
    assert [path.stem for path in NOTEBOOKS] == ["argmin", "control", "from_scratch"]
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text())
        assert notebook["nbformat"] == 4
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
        kinds = [output["output_type"] for cell in cells for output in cell["outputs"]]
        assert "error" not in kinds
        assert "display_data" in kinds
        assert path.stat().st_size < 300_000


def test_the_documentation_builds_without_a_warning(tmp_path):
    pytest.importorskip("furo")
    build = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", "-c", "docs", ".", tmp_path / "html"]
    build = [*map(str, build), "-d", str(tmp_path / "trees")]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "html" / "lab" / "docs" / "control-suite.html").exists()


# Code


@pytest.mark.parametrize("page", PAGES, ids=name)
@pytest.mark.filterwarnings("ignore:Creating .* which inherits from WeightUpdaterBase:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")  # Lightning's own
def test_code_blocks_print_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with patch.dict(os.environ):
        for match, printed in outputs(page):
            assert match[3] is None or alike(match[3], printed), (
                f"{name(page)} does not show what is printed: run `make outputs`\n{printed}"
            )


def test_outputs_are_compared():
    assert doctest.testmod(importlib.import_module("printed")).failed == 0


def test_the_experiment_of_the_docs_is_a_whole_file(tmp_path, monkeypatch):
    """Copied from the page into a file of its own, it trains."""
    section = (ROOT / "docs" / "extend.md").read_text().split("## An experiment", 1)[1]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "bowl.py").write_text(PYTHON.findall(section)[0])
    assert cli.main(["train", "mine.bowl", "preset=tiny"]) == 0
    assert len(list(tmp_path.glob("runs/**/run.json"))) == 1


MODULES = [
    info.name
    for info in pkgutil.walk_packages(dcem_lab.__path__, "dcem_lab.")
    if not info.name.endswith(("_triton", "_kernels", "__main__"))  # these need a GPU, or run at once
]


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_run(module):
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(importlib.import_module(module), optionflags=options).failed == 0
