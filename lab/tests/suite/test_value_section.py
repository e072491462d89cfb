"""The section on agents with a value: what its numbers say, and what they do not."""

import re
import shutil

import numpy as np
import pytest

import made_up
from dcem_lab.report.sources import Sources
from dcem_lab.suite import value_section
from dcem_lab.suite.beside import read_peers, task_rows
from dcem_lab.suite.numbers import CPU, Evaluation, episode_rows, main_trainings, read_trainings


@pytest.fixture
def results(tmp_path):
    made_up.write_questions(tmp_path)
    made_up.write_agents(tmp_path)
    return tmp_path


def evaluation(**runs) -> Evaluation:
    return Evaluation("task", "full-cem-value", runs, "912", "plans with a value")


def words(markup) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", str(markup)).split())


def test_every_task_of_the_folder_has_its_panel_table_and_dots(results):
    body = value_section.section(Sources(results, results)).body
    for task in ("cheetah-run", "hopper-hop"):
        assert f"<h4>{task}</h4>" in body and f"{task} and published agents" in body
        assert f"Returns of {task}, plans with a value" in body
    text = words(body)
    assert "ours 2 160 320 480 640 800 – –" in text  # the cheetah
    assert "bins? value.values=two-hot 0 130 325 –" in text
    assert "TD-MPC2 https://example.org/tdmpc2 abc results" in text
    assert "ours, two-hot" not in text  # it answers a question, and has no curve


def test_a_curve_has_the_mean_and_the_range_of_its_seeds(results):
    cheetah = next(one for one in main_trainings(results) if one.task == "cheetah-run")
    line = value_section._ours(cheetah, "c0")
    assert line.label == "ours, 2 seeds"
    assert (line.y[-1], line.low[-1], line.high[-1]) == (800, 700, 900)


def test_a_mean_ends_where_the_first_of_its_seeds_does(results):
    cheetah = next(one for one in main_trainings(results) if one.task == "cheetah-run")
    cheetah.curves[0] = {name: values[:4] for name, values in cheetah.curves[0].items()}
    line = value_section._ours(cheetah, "c0")
    assert line.x[-1] == 200_048 and line.y[-1] == pytest.approx((360 + 280) / 2)


def test_the_best_published_agents_are_drawn_and_no_others(results):
    drawn = value_section._curves(main_trainings(results), read_peers(results))
    cheetah, hopper = drawn.split("<h4>")[1:]
    assert [name for name in ("TD-MPC2", "A", "B", "C") if f"<title>{name}</title>" in cheetah] == [
        "TD-MPC2", "A", "B",
    ]  # fmt: skip
    assert "<title>A</title>" not in hopper


def test_seeds_apart_and_agents_ahead_are_said(results):
    evaluations = [evaluation(**{"a/seed0": np.full(50, 900.0), "a/seed1": np.full(50, 700.0)})]
    trainings = [one for one in read_trainings(results / "agent") if not one.aside]
    apart, cheetah, hopper = value_section.failures(evaluations, trainings, read_peers(results))
    assert (
        apart
        == "task: results of plans with a value depend on the seed. The mean returns by seed are 900, 700."
    )
    assert (
        "after 500,000 steps, 1 of 4 published agents are ahead of ours (800, 2 seeds): A (820)." in cheetah
    )
    assert "hopper-hop" in hopper and "B (450)" in hopper and "TD-MPC2" not in hopper


@pytest.mark.parametrize(("low", "said"), [(100.0, 1), (870.0, 0)])
def test_two_humps_are_failures_where_the_lower_one_fails(low, said):
    """Two groups of good episodes are two humps too, and no failure."""
    totals = np.concatenate([np.full(20, low) + np.arange(20) / 10, np.full(30, 900.0) + np.arange(30) / 10])
    found = evaluation(**{"a/seed3": totals})
    sentences = list(value_section.failures([found], [], {}))
    assert len(sentences) == said
    assert all("seed 3, either works or fails. Of 50 episodes, 20 around 101, 30" in one for one in sentences)
    assert episode_rows([found])[0]["bimodal"].startswith("20 around")


def test_every_run_is_a_row_with_its_failures():
    runs = {"a/seed0": np.array([900.0, 910.0, 100.0]), "a/seed2": np.array([500.0])}
    first, second = episode_rows([evaluation(**runs)])
    assert (first["seed"], first["mean"], first["lowest"], first["failed"]) == ("0", "637", "100", "1")
    assert (second["seed"], second["failed"]) == ("2", "0")


def test_a_task_is_compared_where_its_training_ends(results):
    cheetah, hopper = task_rows(results)
    assert list(cheetah.values()) == ["cheetah-run", "500,000", "800", "900, 700", "758", "820", "600", "4"]
    assert list(hopper.values()) == ["hopper-hop", "500,000", "400", "400, 500, 300", "210", "–", "450", "–"]


def test_agents_trained_on_a_cpu_are_compared_apart(results):
    for task in ("cheetah-run", "hopper-hop"):
        shutil.copytree(results / "agent" / task / "seed0", results / "agent" / f"{task}-cpu" / "seed0")
    section = value_section.section(Sources(results, results))
    assert "All tasks together: agents trained on a CPU" in section.body
    text = words(section.body)
    assert "ours, cpu, 1 seed" in text and text.index("ours 2 160 320") > 0  # the others stay as they were
    cheetah, hopper = task_rows(results, CPU)
    assert (cheetah["by seed"], hopper["by seed"]) == ("900", "400")
    assert not any("Trained on a CPU" in one for one in section.failures)  # ahead on both tasks

    (poor,) = (one for one in read_trainings(results / "agent") if one.name == "hopper-hop-cpu")
    poor.curves[0]["eval_mean"] /= 2
    (said,) = value_section._behind("Trained on a CPU", [poor], read_peers(results))
    assert said == "Trained on a CPU, our agents are behind TD-MPC2 on 1 of 1 task: hopper-hop (200, 210)."


def test_without_results_the_command_is_named(tmp_path):
    section = value_section.section(Sources(tmp_path, tmp_path))
    assert "Not run yet" in section.body and "dcem train agent" in section.body
    assert not section.opening and not section.failures
