"""The files around the code say what is so: versions, the checks before a commit, what hosted CI runs."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]


def read_yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_all_files_name_one_version():
    versions = {
        tomllib.loads((ROOT / path).read_text())["project"]["version"]
        for path in ("pyproject.toml", "lab/pyproject.toml")
    }
    citation = read_yaml("CITATION.cff")
    newest = re.search(r"^## (\S+), (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert versions == {citation["version"]} == {newest[1]}
    assert str(citation["date-released"]) == newest[2]


def test_a_commit_and_hosted_ci_run_what_a_contributor_runs():
    [hook] = [hook for repo in read_yaml(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    jobs = read_yaml(".github/workflows/test.yml")["jobs"]
    commands = [hook["entry"], *(step["run"] for step in jobs["test"]["steps"] if "run" in step)]
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([\w-]+):", makefile, re.MULTILINE)
    assert commands == ["make check", "make test"]
    assert {"check", "test"} <= set(targets)
    matrix = jobs["versions"]["strategy"]["matrix"]["include"]
    versions = re.search(r"^VERSIONS := (.*)", makefile, re.MULTILINE)
    assert versions and {f"{pair['python']}/{pair['torch']}" for pair in matrix} <= set(versions[1].split())


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda p: p.name
)
def test_an_issue_asks_for_the_versions(path):
    asked = " ".join(
        field["attributes"].get("description", "") for field in yaml.safe_load(path.read_text())["body"]
    )
    assert "dcem.__version__" in asked
    assert "torch.__version__" in asked
