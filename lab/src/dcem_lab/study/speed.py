"""The section on speed: ours beside peers on the CPU, and beside the machine's limits on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dcem_lab.report.charts import Mark, figure, legend, panel, rows
from dcem_lab.report.html import Html, element, join, paragraph
from dcem_lab.report.scales import Scale
from dcem_lab.report.sources import Section, Sources, not_run, or_not_run, read_json, read_rows
from dcem_lab.report.tables import details, number, table

CPU_COMMAND = "make bench"
GPU_COMMAND = "dcem bench --gpu --out lab/benchmarks/gpu/results"
# Tables of the CPU benchmark: title, and which pass is drawn.
CPU = {
    "lml": ("The LML projection", "forward+backward"),
    "dcem": ("DCEM on a quadratic", "forward+backward"),
    "hard": ("CEM, hard selection", "forward"),
    "control": ("Planning with a double integrator", "forward"),
    "overhead": ("DCEM beside its bare objective", "forward+backward"),
    "backward": ("Ways to differentiate, τ = 1", "forward+backward"),
    "backward_cold": ("Ways to differentiate, τ = 0.1", "forward+backward"),
}
LOOP_COMMAND = (
    "python lab/benchmarks/loop.py --preset tiny --steps 300 --output lab/benchmarks/results/loop.csv"
)
GPU = {"lml": "Soft top-k", "dcem": "DCEM solves", "plan": "Planning", "update": "World-model updates"}
DRAWN = ("lml", "dcem", "hard", "control")
PARTS = ("plan", "update", "env", "record")
_COLORS = ("c0", "c1", "c2", "c3", "c4", "c5", "c6")


def section(sources: Sources) -> Section:
    body = join(
        element("h3", "CPU, beside peers"),
        or_not_run(lambda: _cpu(sources.benchmarks), CPU_COMMAND),
        element("h3", "GPU"),
        or_not_run(lambda: _gpu(sources.gpu_benchmarks), GPU_COMMAND),
        element("h3", "A step of training"),
        _loop(sources),
    )
    return Section("speed", "Speed", body)


def _cpu(folder: Path) -> Html:
    facts = read_json(folder / "run.json")
    found = {name: read_rows(folder / f"{name}.csv") for name in CPU if (folder / f"{name}.csv").exists()}
    panels = [_cpu_panel(name, found[name]) for name in DRAWN if name in found]
    caption = (
        "Milliseconds for one call on a logarithmic axis: forward and backward for the first two, forward "
        "alone for the others. Hover over a point for its number."
    )
    tables = [details(CPU[name][0], table([_cpu_row(row) for row in rows_])) for name, rows_ in found.items()]
    return join(
        _against(found, "theseus"),
        paragraph(_cpu_machine(facts)),
        figure(caption, *panels, wide=True),
        *tables,
    )


def _against(found: dict[str, list[dict[str, str]]], peer: str) -> Html | None:
    """How many times longer the peer takes, over all cases."""
    parts = []
    for name in ("lml", "dcem"):
        ratios = [
            float(row["forward+backward ratio"])
            for row in found.get(name, ())
            if row["contender"].startswith(peer) and row["forward+backward ratio"]
        ]
        if ratios:
            ours = found[name][0]["contender"]
            parts.append(f"{number(min(ratios))} to {number(max(ratios))} times as long as {ours}")
    if not parts:
        return None
    return paragraph(f"Forward and backward, {peer} takes {' and '.join(parts)}; everything else is below.")


def _cpu_machine(facts: dict[str, Any]) -> str:
    peers = {name: version for found in facts["versions"].values() for name, version in found.items()}
    return (
        f"{facts['cpu']}, {facts['threads']} threads of {facts['cores']} cores, {facts['date']}, commit "
        f"{facts['commit']}; {', '.join(f'{name} {version}' for name, version in peers.items())}. Medians "
        f"over {facts['rounds']} interleaved rounds; ratios are to the first contender of a case, with "
        f"quartiles. Reproduce: {CPU_COMMAND}."
    )


def _cpu_panel(name: str, found: Sequence[dict[str, str]]) -> Html:
    title, passes = CPU[name]
    return panel(
        title, *_dots(title, [(row["case"], row["contender"], row[f"{passes} ms"]) for row in found])
    )


def _dots(title: str, measured: Sequence[tuple[str, str, str]]) -> list[Html]:
    """(case, contender, milliseconds) as a chart and its legend; cells without a number are left out."""
    known = [(case, contender, float(ms)) for case, contender, ms in measured if ms]
    contenders = list(dict.fromkeys(contender for _, contender, _ in known))
    color = {contender: _COLORS[i % len(_COLORS)] for i, contender in enumerate(contenders)}
    groups = [
        (
            case,
            [
                Mark(f"{case}, {who}: {number(ms)} ms", color[who], ms)
                for at, who, ms in reversed(known)  # the first contender is drawn last, on top
                if at == case
            ],
        )
        for case in dict.fromkeys(case for case, _, _ in known)
    ]
    values = [ms for _, _, ms in known]
    scale = Scale(min(values) / 2, max(values) * 2, log=True)
    return [rows(title, groups, scale, "milliseconds"), legend([(color[who], who) for who in contenders])]


def _cpu_row(row: dict[str, str]) -> dict[str, str]:
    shown = {"case": row["case"], "contender": row["contender"]}
    for name in ("forward", "forward+backward"):
        if row[f"{name} ms"]:
            shown[f"{name}, ms"] = number(float(row[f"{name} ms"]))
            q1, q3 = (number(float(row[f"{name} ratio {q}"] or "nan")) for q in ("q1", "q3"))
            shown[f"{name}, ratio"] = f"{number(float(row[f'{name} ratio']))} [{q1}–{q3}]"
    skipped = {"case", "contender", "failure"}
    for name, value in row.items():
        if value and name not in skipped and not name.startswith("forward"):
            shown[name] = number(float(value))
    if row.get("failure"):
        shown["failure"] = row["failure"]
    return shown


def _gpu(folder: Path) -> Html:
    facts = read_json(folder / "run.json")
    rates = facts["rates"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    about = (
        f"{facts['gpu']}, driver {facts['driver']}, {versions}, {facts['date']}, commit {facts['commit']}. "
        f"Measured there: a copy moves {rates['bytes'] / 1e12:.2f} TB/s. Ratios are to the first row of a "
        "case; the floor is the time that bytes and operations take at the machine's measured limits."
    )
    tables = [
        details(title, table([_gpu_row(row) for row in read_rows(folder / f"{name}.csv")]))
        for name, title in GPU.items()
        if (folder / f"{name}.csv").exists()
    ]
    if not tables:
        return not_run(GPU_COMMAND)
    panels = [
        panel(GPU[name], *_gpu_dots(GPU[name], read_rows(folder / f"{name}.csv")))
        for name in ("lml", "dcem")
        if (folder / f"{name}.csv").exists()
    ]
    caption = "Milliseconds on the device's clock, forward and backward, on a logarithmic axis."
    return join(paragraph(about), figure(caption, *panels, wide=True), *tables)


def _gpu_dots(title: str, found: Sequence[dict[str, str]]) -> list[Html]:
    both = [row for row in found if "forward+backward" in row["case"]] or list(found)
    short = [(row["case"].removesuffix(", forward+backward"), row["what"], row["ms"]) for row in both]
    return _dots(title, short)


def _gpu_row(row: dict[str, str]) -> dict[str, str]:
    return {name: number(float(value)) if _is_number(value) else value for name, value in row.items()}


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _loop(sources: Sources) -> Html:
    found = loop_rows(sources)
    if not found:
        return not_run(LOOP_COMMAND)
    note = (
        "Where a step of the world model's training spends its time: milliseconds of each part, and its "
        "share of the step. On a GPU updates run beside planning and the environments, so that shares add "
        "up to more than 100%. Evaluations come on top of these times."
    )
    return join(paragraph(note), table(found))


def loop_rows(sources: Sources) -> list[dict[str, str]]:
    """Of loop.csv of the GPU and of the CPU, as far as they are there."""
    paths = (folder / "loop.csv" for folder in (sources.gpu_benchmarks, sources.agent_benchmarks))
    return [_loop_row(row) for path in paths if path.exists() for row in read_rows(path)]


def _loop_row(row: dict[str, str]) -> dict[str, str]:
    step, rate = float(row["step"]), float(row["env_steps_per_s"])
    return {
        "task": row["task"],
        "preset": row["preset"],
        "device": row["device"],
        **{f"{part}, ms": f"{float(row[part]):.2f} ({float(row[part]) / step:.0%})" for part in PARTS},
        "step, ms": f"{step:.1f}",
        "environment steps a second": f"{rate:,.0f}",
        "2M steps take": f"{2e6 / rate / 60:.0f} min" if row["preset"] == "best" else "",
    }
