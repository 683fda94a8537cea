"""Write docs/results/performance.md from the records and the notes.md in docs/results/performance/.

All numbers in the tables come from the records. The first paragraph of the notes opens the page; the figure of
`figure.py` follows if there are records for it. Records of other machines with older code are in the folder `archive`,
with separate notes, from which docs/results/performance_archive.md is made.

    python benchmarks/page.py
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from figure import draw_speed, records_of_figure
from hf_multisource.evaluation.results import read_result, split_notes
from hf_multisource.evaluation.tables import format_table

Record = Mapping[str, Any]
Table = tuple[list[str], list[list[str]]]
RESULTS = Path("docs/results/performance")
ORDER = ("size", "threads", "beams", "batch")  # keys by which the records of a part are sorted
MAKERS = "`python benchmarks/inference.py` and `python benchmarks/train_step.py` make them"
OWN_ENGINES = ("flat optimized", "flat int8")  # our variants, with which other engines are compared
DEVICES = {"cpu": ("On a CPU", MAKERS), "cuda": ("On a GPU", "`benchmarks/gpu.md` has the commands")}
# Kind of operator -> pattern of the names of PyTorch's operators and of CUDA kernels; the first match counts.
OPERATORS = {
    "matrix products": r"mm$|linear|gemm|matmul",
    "attention": r"attention|fmha|flash",
    "softmax and top-k": r"softmax|topk|amax|TopK|sort",
}
ARCHIVE = "archive"  # name of the subfolder for records of other machines
TITLE = """\
<!-- Made by `python benchmarks/page.py` from what lies in {folder}/. Do not edit. -->
# {title}
"""
FIGURE = """\
![Sentences per second at three batch sizes]({name})

*Sentences per second of CPU time on one core ({hardware}), size msmt, beam 10; what the names mean is said
[below](#how-to-read-the-tables).*
"""
INTRODUCTION = """\
## How to read the tables

*msmt*: four texts, `d_model` 256, 4 encoder and 6 decoder layers, a vocabulary of 48,000. *mmt*: a text and 49
vectors of a picture, `d_model` 512, 6 encoder and 6 decoder layers, a vocabulary of 40,000. Both are sizes of
Libovický et al. 2018. *overhead*: the layers of *msmt* with `d_model` 16 and a vocabulary of 500, so that arithmetic
takes almost no time: what remains are the calls of operators from Python, which also limit a GPU with small batches.
Weights and tokens are random; every text has 25 tokens, and so has the target.

The baseline is Transformers' `MarianMTModel` with one encoder that reads the concatenation of all sources: *HF*. Its
encoder also reads the vectors of a picture, which our models only project to their width. *HF tuned* is the same model
with `torch.backends.mkldnn.matmul.fp32_precision = "bf16"`, *CTranslate2* its weights in CTranslate2, and *concat* its
weights in our code. The name of a combiner alone is our model with plain `generate`; *unfolded* is `generate` with
`fold_beams=False`, the slow path; *optimized* and *int8* are `generate` after `optimize_for_inference()` and
`optimize_for_inference(int8=True)`.

*time / floor* is the measured time divided by a lower bound: the time of all matrix products at the highest measured
speed, or the time to read the decoder's weights from memory once per step, whichever is longer. It is empty for 8 bits.
*same tokens* is the number of hypotheses that equal those of the reference, which is *unfolded* for a combiner and *HF*
for a model with one encoder (in tables of other engines, the first row). "8 of 16 + 6 as good": 8 of 16 hypotheses are
equal, and the scores of 6 others differ from those of the reference by less than 0.0001 nats per token.

The models of a table were measured in one process, one after the other; each round goes through them in this order and
in the reverse order. A ratio is the median over the rounds; in brackets, the least and the most. With one thread it is
of CPU time, otherwise of wall time.

Tables of *time by operator* show the seconds of a batch without the profiler, then those of PyTorch's operators in one
run with the profiler. *softmax and top-k* choose the next tokens. The last column is the speed over HF if only the
matrix products took time.

Tables of *other engines* compare ways to compute the decoder's steps; `benchmarks/engines.py` describes them. Their
column "CPU ms a step" is the time of the decoder's layers, the output layer, and the choice of the best tokens.
"""


def middle(run: Record, clock: str) -> float:
    """Return the median of the measured seconds."""
    return statistics.median(run["seconds"][clock])


def over(runs: Record, reference: str, name: str, clock: str) -> str:
    """Return the speed-up over a reference: median, minimum and maximum of the rounds; "" without the reference."""
    if reference not in runs:
        return ""
    pairs = zip(runs[reference]["seconds"][clock], runs[name]["seconds"][clock], strict=True)
    ratios = [theirs / ours for theirs, ours in pairs]
    return f"{statistics.median(ratios):.2f}× ({min(ratios):.2f}–{max(ratios):.2f})"


def fastest(floor: Record, kind: str) -> float:
    """Return the GFLOP/s of the fastest matrix product of a data type; infinity without a measurement."""
    return max((value for name, value in floor.get("gflops", {}).items() if name.startswith(kind)), default=math.inf)


def of_floor(record: Record, floor: Record) -> Table:
    """Return the table of the machine's limits."""
    lines = [[f"product of matrices, {name}", f"{value:,.0f} GFLOP/s"] for name, value in record["gflops"].items()]
    return ["at most", plural(record["threads"])], [*lines, ["copy in memory", f"{record['bandwidth']:.0f} GB/s"]]


def of_speed(record: Record, floor: Record) -> Table:
    """Return the table of the speed of all variants in one setting."""
    runs, clock, lines = record["runs"], record["clock"], []
    opponents = [name for name in runs if name == "HF" or name.startswith("CTranslate2")]
    kind, width = ("float32", 4) if record["device"] == "cpu" else ("bfloat16", 2)
    for name, run in runs.items():
        seconds, same, far = middle(run, clock), run["same"], ""
        if floor and "int8" not in name:  # int8 products are faster than the measured limit
            reading = record["steps"] * run["weights"] * width / floor["bandwidth"]
            far = f"{seconds / max(run['gflop'] * record['batch'] / fastest(floor, kind), reading):.1f}×"
        compared = [over(runs, opponent, name, clock) for opponent in opponents]
        lines.append([name, f"{record['batch'] / seconds:,.2f}", *compared, far, sameness(same)])
    return ["", "sentences/s", *(f"over {one}" for one in opponents), "time / floor", "same tokens"], lines


def of_profile(record: Record, floor: Record) -> Table:
    """Return the table of the time by kind of operator."""
    runs, clock, lines = record["runs"], record["clock"], []
    for name, run in runs.items():
        spent = dict.fromkeys((*OPERATORS, "other operators"), 0.0)
        for operator, found in run["operators"].items():
            kinds = (kind for kind, pattern in OPERATORS.items() if re.search(pattern, operator))
            spent[next(kinds, "other operators")] += found["seconds"]
        alone = f"{middle(runs['HF'], clock) / spent['matrix products']:.2f}×"
        found = [f"{seconds:.2f}" for seconds in (middle(run, clock), *spent.values())]
        lines.append([name, *found, over(runs, "HF", name, clock), alone])
    return ["", "seconds", *OPERATORS, "other operators", "over HF", "with matrix products alone"], lines


def of_engines(record: Record, floor: Record) -> Table:
    """Return the table of other engines for the decoder's steps."""
    runs, clock, lines = record["runs"], record["clock"], []
    for name, run in runs.items():
        compared = [over(runs, own, name, clock) for own in OWN_ENGINES]
        speed, step = record["batch"] / middle(run, clock), 1000 * run["in_steps"] / record["steps"]
        lines.append([name, f"{speed:,.2f}", *compared, f"{step:,.1f}", sameness(run["same"])])
    return ["", "sentences/s", *(f"over {own}" for own in OWN_ENGINES), "CPU ms a step", "same tokens"], lines


def of_memory(record: Record, floor: Record) -> Table:
    """Return the table of peak memory beyond the weights."""
    found = record["mebibytes"]
    lines = [[name, f"{value:,.0f}", f"{value / found['HF']:.2f}×"] for name, value in found.items()]
    return ["", "peak beyond the weights, MiB", "of HF's"], lines


def of_scaling(record: Record, floor: Record) -> Table:
    """Return the table of time per sentence as one quantity grows."""
    lines = []
    for point in record["points"]:
        costs = (1000 * middle(run, record["clock"]) / point["batch"] for run in point["runs"].values())
        lines.append([f"{point['quantity']} {point['value']}", *(f"{cost:,.1f}" for cost in costs)])
    return ["ms for a sentence", *record["points"][0]["runs"]], lines


def of_trained(record: Record, floor: Record) -> Table:
    """Return the table of a trained checkpoint on real sentences."""
    runs, clock, lines = record["runs"], record["clock"], []
    for name, run in runs.items():
        speed = run["same"]["of"] / middle(run, clock)
        lines.append([name, f"{speed:,.1f}", over(runs, "unfolded", name, clock), sameness(run["same"])])
    return ["", "sentences/s", "over unfolded", "same text"], lines


def of_step(record: Record, floor: Record) -> Table:
    """Return the table of a training step."""
    runs, clock, lines = record["runs"], record["clock"], []
    for name, run in runs.items():
        kind, _, half = name.partition(" ")
        rate = record["batch"] / middle(run, clock)
        against = [over(runs, one, name, clock) for one in ("HF", f"HF {half}".strip(), kind)]
        used = rate * run["gflop"] / fastest(floor, "bfloat16" if half else "float32")
        lines.append([name, f"{rate * record['target']:,.0f}", *against, f"{used:.0%}" if used else ""])
    return ["", "target tokens/s", "over HF", "over HF in the same numbers", "over own float32", "of the peak"], lines


def of_update(record: Record, floor: Record) -> Table:
    """Return the table of an update of a recipe for CPUs."""
    runs, clock = record["runs"], record["clock"]
    peak, lines = fastest(floor, "bfloat16"), []  # `fast_products` also computes float32 products in bfloat16
    for name, run in runs.items():
        seconds, ratio = middle(run, clock), over(runs, "everything computed", name, clock)
        work = run.get("gflop")  # missing in records up to 2026-11-23
        used = [f"{work:.1f}", f"{work / seconds / peak:.0%}"] if work else ["", ""]
        lines.append([name, f"{seconds:.3f}", ratio, *used])
    return ["", "seconds", "over everything computed", "GFLOP", "of the bfloat16 peak"], lines


def of_loss(record: Record, floor: Record) -> Table:
    """Return the table of the two ways to compute the loss."""
    runs, lines = record["runs"], []
    for name, run in runs.items():
        share = run["mebibytes"] / runs["full logits"]["mebibytes"]
        lines.append(
            [name, f"{run['mebibytes']:,.0f}", f"{share:.3f}×", over(runs, "full logits", name, record["clock"])]
        )
    return ["", "peak beyond the inputs, MiB", "of full logits", "speed over full logits"], lines


def of_padding(record: Record, floor: Record) -> Table:
    """Return the table of the share of padding in batches."""
    lines = [[names, *(f"{share:.1%}" for share in shares.values())] for names, shares in record["shares"].items()]
    return ["sources", "at random", "`LengthBucketSampler`"], lines


def sameness(same: Record) -> str:
    """Return in words how many hypotheses are equal to those of the slow path."""
    return f"{same['identical']} of {same['of']}" + (f" + {same['near']} as good" if same.get("near") else "")


def plural(threads: int) -> str:
    """Return a number of threads in words."""
    return f"{threads} thread{'s' if threads > 1 else ''}"


# Part -> title of its section, title of a record, and function that makes the table.
PARTS: dict[str, tuple[str, str, Callable[[Record, Record], Table]]] = {
    "floor": ("What the machine can do", "", of_floor),
    "speed": ("Decoding", "{size}, beam {beams}, batch {batch}, {threads}", of_speed),
    "profile": ("Time by operator", "{size}, beam {beams}, batch {batch}, {threads}", of_profile),
    "engines": ("Other engines for the decoder's steps", "{size}, beam {beams}, batch {batch}, {threads}", of_engines),
    "memory": ("Memory of decoding", "{size}, beam {beams}, batch {batch}", of_memory),
    "scaling": ("Scaling", "{size}, beam {beams}, batch {batch}, {threads}; one of them varied", of_scaling),
    "trained": ("Trained checkpoints", "{run}, {limit} sentences, beam {beams}, batch {batch}, {threads}", of_trained),
    "step": ("A step of training", "{size}, batch {batch}, {threads}", of_step),
    "step_profile": ("Time of a step of training by operator", "{size}, batch {batch}, {threads}", of_profile),
    "update": ("An update of a recipe for CPUs", "{update}, batch {batch}, {numbers}, {threads}", of_update),
    "loss": ("The loss", "{rows} tokens to predict, of {vocab_size}", of_loss),
    "padding": ("Padding", "{sentences} sentences, in words, batch {batch}", of_padding),
}


def sections(records: Sequence[Record]) -> list[str]:
    """Return the sections with the measurements on one machine, part by part."""
    page: list[str] = []
    floors = {record["threads"]: record for record in records if record["part"] == "floor"}
    for part, (section, label, tabulate) in PARTS.items():
        chosen = [record for record in records if record["part"] == part]
        page += [f"### {section}\n"] if chosen else []
        for record in sorted(chosen, key=lambda one: [one.get(key, 0) for key in ORDER]):
            named = label.format(**{**record, "threads": plural(record["threads"])})
            page += [f"{named}:\n"] if named else []
            page.append(format_table(*tabulate(record, floors.get(record["threads"], {}))) + "\n")
            chosen_by: dict[str, list[str]] = {}
            for name, run in record.get("runs", {}).items():
                chosen_by.setdefault("; ".join(run.get("chose", ())), []).append(name)
            page += [f"{', '.join(names)}: {chose}.\n" for chose, names in chosen_by.items() if chose]
    return page


def render(
    records: Sequence[Record], notes: str = "", title: str = "Performance", folder: str = RESULTS.name, figure: str = ""
) -> str:
    """Return a page.

    Args:
        records: Records of `common.save`.
        notes: Notes in Markdown; the first paragraph opens the page.
        title: The page's title.
        folder: The folder of the records, relative to the page.
        figure: File name of the figure; "" if there is no figure.

    Returns:
        The page.
    """
    opening, rest = split_notes(notes)
    page = [TITLE.format(folder=folder, title=title), *([f"{opening}\n"] if opening else [])]
    if figure:
        page.append(FIGURE.format(name=figure, hardware=records_of_figure(records)[0]["hardware"]))
    page += [f"## What the figures say\n\n{rest}\n"] if rest else []
    page.append(INTRODUCTION)
    for device, (heading, maker) in DEVICES.items():
        machines = sorted({record["hardware"] for record in records if record["device"] == device})
        page += [] if machines else [f"## {heading}\n", f"No figures yet: {maker}.\n"]
        for machine in machines:
            page.append(f"## {heading}: {machine}\n")
            page += sections([one for one in records if (one["device"], one["hardware"]) == (device, machine)])
    made: dict[str, None] = {}
    for record in records:
        versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
        made[f"- {record['date']}, {record['hardware']}, {versions}:\n\n      {record['command']}\n"] = None
    page += ["## How each figure was made\n", *made] if made else []
    return "\n".join(page)


def write_page(folder: Path) -> Path:
    """Rewrite the page from all records in a folder, and the figure if matplotlib is installed.

    Args:
        folder: The folder. The page and the figure are written next to it.

    Returns:
        The page.
    """
    page, drawing, records = folder.with_suffix(".md"), folder.with_suffix(".png"), read_records(folder)
    if records_of_figure(records) and find_spec("matplotlib"):
        draw_speed(records, drawing)
    figure = drawing.name if records_of_figure(records) and drawing.exists() else ""
    page.write_text(render(records, read_notes(folder), figure=figure), encoding="utf-8")
    return page


def write_archive(folder: Path) -> Path:
    """Rewrite the page of the records of other machines with older code.

    Args:
        folder: The folder of all records. The page is written next to it.

    Returns:
        The page.
    """
    archive, page = folder / ARCHIVE, folder.with_name(f"{folder.name}_{ARCHIVE}.md")
    title, place = "Performance on other machines, with older code", f"{folder.name}/{ARCHIVE}"
    page.write_text(render(read_records(archive), read_notes(archive), title, place), encoding="utf-8")
    return page


def read_records(folder: Path) -> list[Record]:
    """Read all records of a folder in the order of their names."""
    return [read_result(path) for path in sorted(folder.glob("*/*/*.json"))]


def read_notes(folder: Path) -> str:
    """Read the notes in a folder; "" if there are no notes."""
    notes = folder / "notes.md"
    return notes.read_text("utf-8") if notes.exists() else ""


if __name__ == "__main__":
    print(write_page(RESULTS))
    print(write_archive(RESULTS))
