"""The section on speed: compared with peers on the CPU, and with the hardware limits on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dcem_lab.report.charts import Mark, rows
from dcem_lab.report.documents import Rows
from dcem_lab.report.formats import counted, if_number, number
from dcem_lab.report.scales import Scale
from dcem_lab.report.sources import Section, Sources, or_not_run, read_json, read_rows, rows_if_any
from dcem_lab.report.templates import part, render

CPU_COMMAND = "make bench"
GPU_COMMAND = "dcem bench --gpu --out lab/benchmarks/gpu/results"
# Tables of the CPU benchmark: title, and which pass is drawn.
CPU = {
    "lml": ("The LML projection", "forward+backward"),
    "dcem": ("DCEM on a quadratic", "forward+backward"),
    "embedding": ("One update of a latent action space", "forward+backward"),
    "hard": ("CEM, hard selection", "forward"),
    "control": ("Planning with a double integrator", "forward"),
    "overhead": ("DCEM and its objective alone", "forward+backward"),
    "backward": ("Ways to differentiate, τ = 1", "forward+backward"),
    "backward_cold": ("Ways to differentiate, τ = 0.1", "forward+backward"),
}
LOOP_COMMAND = (
    "python lab/benchmarks/loop.py --preset tiny --steps 300 --output lab/benchmarks/results/loop.csv"
)
GPU = {
    "lml": "Soft top-k",
    "topk": "Soft top-k operators",
    "dcem": "DCEM solves",
    "plan": "Planning",
    "update": "World-model updates",
    "value": "Updates of the value",
}
DRAWN = ("lml", "dcem", "hard", "control")
PARTS = ("plan", "update", "value_update", "env", "record")
_COLORS = ("c0", "c1", "c2", "c3", "c4", "c5", "c6")


def section(sources: Sources) -> Section:
    body = render(
        "study/speed.html",
        cpu=or_not_run(lambda: _cpu(sources.benchmarks), CPU_COMMAND),
        gpu=or_not_run(lambda: _gpu(sources.gpu_benchmarks), GPU_COMMAND),
        loop_=loop_rows(sources),
        loop_command=LOOP_COMMAND,
    )
    about = "Time and memory, on a CPU compared with other packages, and on a GPU."
    return Section("speed", "Speed", body, about=about)


def _cpu(folder: Path) -> Markup:
    facts, found = read_json(folder / "run.json"), _tables(folder, CPU)
    caption = (
        "Milliseconds per call on a logarithmic axis: forward and backward for the first two, forward only "
        "for the others. Hover over a point for its value."
    )
    drawn = {CPU[name]: found[name] for name in DRAWN if name in found}
    return render(
        "study/benchmark.html",
        about=[_against(found, "theseus"), _cpu_machine(facts)],
        caption=caption,
        panels=[
            _dots(title, [(row["case"], row["contender"], row[f"{passes} ms"]) for row in measured])
            for (title, passes), measured in drawn.items()
        ],
        tables=[(CPU[name][0], [_cpu_row(row) for row in rows_]) for name, rows_ in found.items()],
    )


def _tables(folder: Path, names: Iterable[str]) -> dict[str, list[dict[str, str]]]:
    """Those that are there."""
    paths = {name: folder / f"{name}.csv" for name in names}
    return {name: read_rows(path) for name, path in paths.items() if path.exists()}


def _against(found: dict[str, list[dict[str, str]]], peer: str) -> str:
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
        return ""
    return f"Forward and backward, {peer} takes {' and '.join(parts)}."


def _cpu_machine(facts: dict[str, Any]) -> str:
    peers = {name: version for found in facts["versions"].values() for name, version in found.items()}
    return (
        f"{facts['cpu']}, {counted(facts['threads'], 'thread')} on {counted(facts['cores'], 'core')}, "
        f"{facts['date']}, commit "
        f"{facts['commit']}; {', '.join(f'{name} {version}' for name, version in peers.items())}. Medians "
        f"over {facts['rounds']} interleaved rounds. Ratios are relative to the first row of a case, with "
        f"quartiles. Reproduce: {CPU_COMMAND}."
    )


def _dots(title: str, measured: Sequence[tuple[str, str, str]]) -> Markup:
    """(case, contender, milliseconds) as a chart with its legend; cells without a number are left out."""
    known = [(case, contender, float(ms)) for case, contender, ms in measured if ms]
    contenders = list(dict.fromkeys(contender for _, contender, _ in known))
    color = {contender: _COLORS[i % len(_COLORS)] for i, contender in enumerate(contenders)}
    groups: dict[str, list[Mark]] = {case: [] for case, _, _ in known}
    for case, who, ms in reversed(known):  # the first contender is drawn last, on top
        groups[case].append(Mark(f"{case}, {who}: {number(ms)} ms", color[who], ms))
    values = [ms for _, _, ms in known]
    scale = Scale(min(values) / 2, max(values) * 2, log=True)
    chart = rows(title, list(groups.items()), scale, "milliseconds")
    return part("panel", title, chart, [(color[who], who) for who in contenders])


def _cpu_row(row: dict[str, str]) -> dict[str, str]:
    shown = {"case": row["case"], "contender": row["contender"]}
    for name in ("forward", "forward+backward"):
        if row[f"{name} ms"]:
            shown[f"{name}, ms"] = number(float(row[f"{name} ms"]))
            q1, q3 = (number(float(row[f"{name} ratio {q}"] or "nan")) for q in ("q1", "q3"))
            shown[f"{name}, ratio"] = f"{number(float(row[f'{name} ratio']))} [{q1}–{q3}]"
    return shown | {k: if_number(v) for k, v in row.items() if v and not k.startswith("forward")}


def _gpu(folder: Path) -> Markup:
    facts, found = read_json(folder / "run.json"), _tables(folder, GPU)
    if not found:
        return part("not_run", GPU_COMMAND)
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    about = (
        f"{facts['gpu']}, driver {facts['driver']}, {versions}, {facts['date']}, commit {facts['commit']}. "
        f"Copying reaches {facts['rates']['bytes'] / 1e12:.2f} TB/s there. Ratios are relative to the first "
        "row of a case. The floor is the least time that the bytes and operations take at the measured "
        "limits of the machine."
    )
    return render(
        "study/benchmark.html",
        about=[about],
        caption="Milliseconds of device time, forward and backward, on a logarithmic axis.",
        panels=[_gpu_dots(GPU[name], found[name]) for name in ("lml", "dcem") if name in found],
        tables=[
            (GPU[name], [{k: if_number(v) for k, v in row.items()} for row in measured])
            for name, measured in found.items()
        ],
    )


def _gpu_dots(title: str, found: Sequence[dict[str, str]]) -> Markup:
    both = [row for row in found if "forward+backward" in row["case"]] or list(found)
    short = [(row["case"].removesuffix(", forward+backward"), row["what"], row["ms"]) for row in both]
    return _dots(title, short)


def loop_rows(sources: Sources) -> list[dict[str, str]]:
    """Of the loop.csv of the GPU and of that of the CPU, as far as they are there."""
    folders = (sources.gpu_benchmarks, sources.checkout / "lab" / "benchmarks" / "results")
    return [_loop_row(row) for folder in folders for row in rows_if_any(folder / "loop.csv")]


def _loop_row(row: dict[str, str]) -> dict[str, str]:
    step, rate = float(row["step"]), float(row["env_steps_per_s"])
    parts = {part: float(row.get(part) or 0) for part in PARTS}
    without = ", without C++ kernels" if row.get("kernels") == "no" else ""
    return {
        "task": row["task"],
        "training": f"{row.get('experiment') or 'planet'}, {row['preset']}",
        "device": row["device"] + without,
        **{
            f"{part.replace('_', ' ')}, ms": f"{ms:.2f} ({ms / step:.0%})" if ms else ""
            for part, ms in parts.items()
        },
        "step, ms": f"{step:.1f}",
        "environment steps per second": f"{rate:,.0f}",
        "2M steps take": f"{2e6 / rate / 60:.0f} min" if row["preset"] == "best" else "",
    }


def target_rows(sources: Sources) -> Rows:
    """What the benchmark on a GPU was to reach, and whether it did."""
    return [
        {name: if_number(text) for name, text in row.items()}
        for row in rows_if_any(sources.gpu_benchmarks / "targets.csv")
    ]
