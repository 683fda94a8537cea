"""docs/results/performance.md, made from the records in docs/results/performance/. No figure is typed by hand.

python benchmarks/page.py
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import RESULTS
from results import format_table, read_json

Record = Mapping[str, Any]
DEVICES = {"cpu": "On a CPU", "cuda": "On a GPU"}
NOTHING = "No figures yet; `benchmarks/gpu.md` has the commands.\n"
INTRODUCTION = """\
<!-- Made by `python benchmarks/page.py` from what lies in performance/. Do not edit. -->
# Performance

*msmt*: four texts of 25 tokens, D 256, 4 + 6 layers, a vocabulary of 48,000. *mmt*: a text of 25 tokens and 49 vectors of a
picture, D 512, 6 + 6 layers, 40,000 tokens. Both are sizes of Libovický et al. 2018; weights and tokens are random, and
every text is 25 tokens long.

What one would use instead reads all sources joined in one encoder: *HF*, stock Marian of Transformers (vectors are
tokens in it); *HF tuned*, the same with `torch.backends.mkldnn.matmul.fp32_precision = "bf16"`; *CTranslate2* with
Marian's weights. *concat* is Marian's weights in our code. Of ours, the bare name is plain `generate`; *unfolded*:
`fold_beams=False`, the slow path; *optimised* and *int8*: after `optimize_for_inference()` and
`optimize_for_inference(int8=True)`.

All that stand in one table ran in one process, in turn, forwards and backwards in each round. A ratio is the median over
the rounds of the two times of that round; in brackets, the least and the most. With one thread it is of CPU time,
otherwise of time on the wall.
"""


def ratios(runs: Mapping[str, Any], name: str, reference: str, clock: str) -> list[float]:
    """How many times as fast as the reference a run was, in every round; none if either is not there."""
    if name not in runs or reference not in runs:
        return []
    times = (runs[key]["seconds"][clock] for key in (reference, name))
    return [before / after for before, after in zip(*times, strict=True)]


def times(values: Sequence[float]) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):.2f}× ({min(values):.2f}–{max(values):.2f})" if values else ""


def middle(run: Mapping[str, Any], clock: str) -> float:
    """Median seconds."""
    return statistics.median(run["seconds"][clock])


def fastest(floor: Record | None, kind: str) -> float | None:
    """GFLOP/s of the fastest product of matrices of a kind of numbers."""
    found = [] if floor is None else [value for name, value in floor["gflops"].items() if name.startswith(kind)]
    return max(found, default=None)


def least_seconds(run: Mapping[str, Any], record: Record, floor: Record, kind: str) -> float:
    """What a batch must take: its arithmetic at the fastest product, or every step's reading of the weights."""
    width = {"float32": 4, "bfloat16": 2}[kind]
    peak = fastest(floor, kind) or float("inf")
    return max(run["gflop"] * record["batch"] / peak, record["steps"] * run["weights"] * width / floor["bandwidth"])


def threads(record: Record) -> str:
    """The number of threads, in words."""
    return f"{record['threads']} thread{'s' if record['threads'] > 1 else ''}"


def render_floor(record: Record, floor: Record | None) -> str:
    """What the machine can do."""
    lines = [[f"product of matrices, {name}", f"{value:,.0f} GFLOP/s"] for name, value in record["gflops"].items()]
    return format_table(["at most", threads(record)], [*lines, ["copy in memory", f"{record['bandwidth']:.0f} GB/s"]])


def render_speed(record: Record, floor: Record | None) -> str:
    """All competitors in one setting."""
    runs, clock = record["runs"], record["clock"]
    opponents = [name for name in runs if name == "HF" or name.startswith("CTranslate2")]
    kind = "float32" if record["device"] == "cpu" else "bfloat16"
    lines = []
    for name, run in runs.items():
        seconds, same = middle(run, clock), run["same"]
        worth = f" + {same['near']} as good" if same["near"] else ""
        # A product of int8 is faster than the floor that was measured.
        far = "" if floor is None or "int8" in name else f"{seconds / least_seconds(run, record, floor, kind):.1f}×"
        compared = [times(ratios(runs, name, opponent, clock)) for opponent in opponents]
        line = [name, f"{record['batch'] / seconds:,.2f}", *compared, far]
        lines.append([*line, f"{same['identical']} of {same['of']}{worth}"])
    header = ["", "sentences/s", *(f"over {opponent}" for opponent in opponents), "time / floor", "same tokens"]
    chosen = {name: "; ".join(run["chose"]) for name, run in runs.items() if run["chose"]}
    said = "".join(f"\n- `optimize_for_inference` of *{name}*: {text}" for name, text in chosen.items())
    return format_table(header, lines) + (f"\n{said}" if said else "")


def render_memory(record: Record, floor: Record | None) -> str:
    """Memory beyond the weights."""
    found = record["mebibytes"]
    lines = [[name, f"{value:,.0f}", f"{value / found['HF']:.2f}×"] for name, value in found.items()]
    return format_table(["", "peak beyond the weights, MiB", "of HF's"], lines)


def render_scaling(record: Record, floor: Record | None) -> str:
    """Cost as one quantity grows."""
    names = list(record["points"][0]["milliseconds"])
    lines = [
        [f"{point['quantity']} {point['value']}", *(f"{cost:,.1f}" for cost in point["milliseconds"].values())]
        for point in record["points"]
    ]
    return "Milliseconds for a sentence; the other quantities as in the title.\n\n" + format_table(["", *names], lines)


def render_trained(record: Record, floor: Record | None) -> str:
    """Trained checkpoints on real sentences."""
    lines, clock = [], record["clock"]
    reference = next(iter(record["runs"].values()))["unfolded"]
    for checkpoint, runs in record["runs"].items():
        for name, run in runs.items():
            same, seconds = run["same"], middle(run, clock)
            line = [f"{checkpoint}, {name}", f"{same['of'] / seconds:,.1f}"]
            line += [f"{middle(one, clock) / seconds:.2f}×" for one in (reference, runs["unfolded"])]
            lines.append([*line, f"{same['identical']} + {same['near']} as good of {same['of']}"])
    header = ["", "sentences/s", "over the first line", "over its own slow path", "same tokens"]
    return format_table(header, lines)


def render_step(record: Record, floor: Record | None) -> str:
    """A step of training."""
    runs, clock, lines = record["runs"], record["clock"], []
    for name, run in runs.items():
        seconds = middle(run, clock)
        peak = fastest(floor, "bfloat16" if "bf16" in name else "float32")
        used = f"{run['gflop'] * record['batch'] / seconds / peak:.0%}" if peak else ""
        against = [
            times([1 / ratio for ratio in ratios(runs, name, reference, clock)])
            for reference in ("HF", f"HF {name.partition(' ')[2]}".strip(), name.partition(" ")[0])
        ]
        lines.append([name, f"{record['batch'] * record['target'] / seconds:,.0f}", *against, used])
    header = ["", "target tokens/s", "time / HF", "time / HF in the same numbers", "time / own float32", "of the peak"]
    return format_table(header, lines)


def render_loss(record: Record, floor: Record | None) -> str:
    """The two ways to compute the loss."""
    runs, clock = record["runs"], record["clock"]
    full = runs["full logits"]
    lines = [
        [
            name,
            f"{run['mebibytes']:,.0f}",
            f"{run['mebibytes'] / full['mebibytes']:.3f}×",
            times([1 / ratio for ratio in ratios(runs, name, "full logits", clock)]),
        ]
        for name, run in runs.items()
    ]
    return format_table(["", "peak beyond the inputs, MiB", "of full logits", "time / full logits"], lines)


def render_padding(record: Record, floor: Record | None) -> str:
    """Padding of batches."""
    lines = [[sources, *(f"{share:.1%}" for share in shares.values())] for sources, shares in record["shares"].items()]
    return format_table(["sources", "at random", "`LengthBucketSampler`"], lines)


Renderer = Callable[[Record, Record | None], str]
# By part: what the section is called, what one of its records is called, and how it is shown.
PARTS: dict[str, tuple[str, str, Renderer]] = {
    "floor": ("What the machine can do", "", render_floor),
    "speed": ("Decoding", "{size}, beam {beams}, batch {batch}, {threads}", render_speed),
    "memory": ("Memory of decoding", "{size}, beam {beams}, batch {batch}", render_memory),
    "scaling": ("Scaling", "{size}, beam {beams}, batch {batch}, {threads}", render_scaling),
    "trained": ("Trained checkpoints", "{limit} sentences, beam {beams}, batch {batch}, {threads}", render_trained),
    "step": ("A step of training", "{size}, batch {batch}, {threads}", render_step),
    "loss": ("The loss", "{rows} tokens to predict, a vocabulary of {vocab_size}", render_loss),
    "padding": ("Padding", "{sentences} sentences, in words, batch {batch}", render_padding),
}


def render(records: Sequence[Record]) -> str:
    """The page.

    Args:
        records: As `common.save` writes them.

    Returns:
        Markdown.
    """
    page = [INTRODUCTION]
    for device, title in DEVICES.items():
        page.append(f"## {title}\n")
        of_device = [record for record in records if record["device"] == device]
        if not of_device:
            page.append(NOTHING)
        floors = {record["threads"]: record for record in of_device if record["part"] == "floor"}
        for part, (section, label, renderer) in PARTS.items():
            chosen = [record for record in of_device if record["part"] == part]
            keys = ("size", "threads", "beams", "batch")
            for i, record in enumerate(sorted(chosen, key=lambda one: [one.get(key, 0) for key in keys])):
                page += [f"### {section}\n"] if i == 0 else []
                named = label.format(**{**record, "threads": threads(record)})
                page += [f"{named[0].upper()}{named[1:]}:\n"] if named else []
                page.append(renderer(record, floors.get(record["threads"])) + "\n")
    made: dict[str, None] = {}
    for record in records:
        versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
        made[f"- {record['date']}, {record['hardware']}, {versions}:\n\n      {record['command']}\n"] = None
    if made:
        page.append("## How each figure was made\n\n" + "".join(made))
    return "\n".join(page)


def write_page(folder: Path) -> Path:
    """Make the page anew from all records in a folder; it stands beside the folder."""
    page = folder.with_suffix(".md")
    page.write_text(render([read_json(path) for path in sorted(folder.glob("*/*.json"))]), encoding="utf-8")
    return page


def main(argv: Sequence[str] | None = None) -> None:
    """Write the page; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help=f"folder of the records; default: {RESULTS}")
    print(write_page(parser.parse_args(argv).out))


if __name__ == "__main__":
    main()
