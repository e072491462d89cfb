"""No line of the project unpickles, evaluates text as code, or builds objects that a file names."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "benchmarks", "examples", "lab/src", "lab/benchmarks")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

PICKLERS = {
    "pickle",
    "cPickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "shelve",
    "marshal",
    "joblib",
    "jsonpickle",
}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "yaml.load",
    "yaml.unsafe_load",
}
FORBIDDEN_NAMES = {"instantiate", "get_class", "get_method", "_target_"}
# Who may import a module by a name in a variable: by then the name is one of ours, or was typed by the user.
IMPORTERS = {"lab/src/dcem_lab/cli.py", "lab/src/dcem_lab/experiments.py"}
# Who may import a pickler: here joblib runs threads, and reads no file.
WORKERS = {"lab/src/dcem_lab/commands/launchers.py": {"joblib"}}


def dotted(node: ast.AST) -> str:
    """`torch.load` for that attribute, nothing for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def offences(source: str, name: str = "") -> Iterator[str]:
    """What a file must not do, with the lines where it does."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or "", *modules]
            for module in modules:
                if module.split(".")[0] in PICKLERS - WORKERS.get(name, set()) or module in FORBIDDEN_NAMES:
                    yield f"line {node.lineno}: imports {module}"
        elif isinstance(node, ast.Attribute) and node.attr in FORBIDDEN_NAMES:
            yield f"line {node.lineno}: uses {node.attr}"
        elif isinstance(node, ast.Call):
            yield from (f"line {node.lineno}: {offence}" for offence in call_offences(node, name))


def call_offences(node: ast.Call, name: str) -> Iterator[str]:
    called = dotted(node.func)
    options = {keyword.arg: keyword.value for keyword in node.keywords}

    def is_constant(option: str, value: object) -> bool:
        given = options.get(option)
        return isinstance(given, ast.Constant) and given.value is value

    if called in FORBIDDEN_CALLS:
        yield f"calls {called}"
    by_constant = node.args and isinstance(node.args[0], ast.Constant)
    if called.endswith("import_module") and not by_constant and name not in IMPORTERS:
        yield "imports a module by a name that it is given"
    if called == "torch.load" and not is_constant("weights_only", True):
        yield "torch.load without weights_only=True"
    if "weights_only" in options and not is_constant("weights_only", True):
        yield "weights_only is not True"
    if "allow_pickle" in options and not is_constant("allow_pickle", False):
        yield "allow_pickle is not False"
    if called in ("np.load", "numpy.load") and "allow_pickle" not in options:
        yield "np.load without allow_pickle=False"
    if "shell" in options and not is_constant("shell", False):
        yield "runs a shell"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_keeps_to_it(path):
    assert list(offences(path.read_text(), str(path.relative_to(ROOT)))) == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import dill as d",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=trusted)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "eval(text)",
        "exec(code)",
        "__import__(name)",
        "hydra.utils.instantiate(config)",
        "from hydra.utils import instantiate",
        "importlib.import_module(name)",
        "subprocess.run(line, shell=True)",
        "os.system(line)",
        "yaml.load(text)",
    ],
)
def test_the_walk_sees(line):
    assert list(offences(line))


@pytest.mark.parametrize(
    "line",
    [
        "model.eval()",
        "torch.load(path, weights_only=True)",
        "re.compile(x)",
        "importlib.import_module('imageio')",
        "json.load(f)",
    ],
)
def test_the_walk_does_not_cry_wolf(line):
    assert not list(offences(line))
