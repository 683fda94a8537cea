"""Measure memory and start-up time of encoded training data, in memory and in a file that processes share.

    python benchmarks/encoded_data.py DATA [--copies 4] [--processes 1 4]

DATA is a folder of Multi30k's text files (train.en, train.de, train.fr, train.cs). The lines are repeated `--copies`
times, with a number that makes them different. For each number of processes and each way (in memory, stored at the
first start, stored at a later start), the script prints the private and the shared memory of one process in addition
to its imports, the time until the examples are available, and the CPU time of this.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAMES = ("en", "de", "fr")
WAYS = ("in memory", "stored, first start", "stored, later start")


def kilobytes() -> dict[str, int]:
    """Return the private and the shared memory of this process in kB."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    sizes = {name.rstrip(":"): int(size) for name, size, *_ in map(str.split, lines)}
    return {
        "private": sizes["Private_Clean"] + sizes["Private_Dirty"],
        "shared": sizes["Shared_Clean"] + sizes["Shared_Dirty"],
    }


def worker(way: str, first: bool, folder: Path) -> None:
    """Load the examples in one process, and print the time and memory.

    Args:
        way: One of `WAYS`.
        first: Whether this process encodes and stores the rows, if the way uses a file.
        folder: Folder of the data and the processor.
    """
    from datasets import Dataset  # noqa: F401  # imported before the measurement

    from hf_multisource import MultiSourceProcessor
    from hf_multisource.data.encoding import encode_rows
    from hf_multisource.data.rows import read_split
    from hf_multisource.data.store import place_of, store_rows, stored_rows

    processor = MultiSourceProcessor.from_pretrained(folder / "processor")
    before, start, worked = kilobytes(), time.perf_counter(), time.process_time()
    place = place_of(str(folder))
    if way == WAYS[0]:
        examples = encode_rows(processor, read_split(str(folder), "train", NAMES, "cs").rows, "cs", 128)[0]
    else:
        if first:
            rows = read_split(str(folder), "train", NAMES, "cs").rows
            store_rows(place, processor, rows, "cs", 128)
            del rows
        examples = stored_rows(processor, place)
    seconds, cpu = time.perf_counter() - start, time.process_time() - worked
    touched = sum(len(examples[i]["labels"]) for i in range(0, len(examples), 7))
    print(json.dumps([seconds, cpu, touched]), flush=True)
    sys.stdin.readline()  # wait until all processes have loaded the examples
    after = kilobytes()
    print(json.dumps({key: after[key] - before[key] for key in after}), flush=True)
    sys.stdin.readline()


def measure(way: str, processes: int, folder: Path) -> tuple[float, float, float, float]:
    """Start processes that load the examples, and measure their time and memory.

    Args:
        way: One of `WAYS`.
        processes: Number of processes.
        folder: Folder of the data and the processor.

    Returns:
        Seconds until the slowest process has loaded the examples, and its CPU seconds; private and shared memory, in
        MB, of the last process, which did not encode the rows if there are several processes.
    """
    environment = {**os.environ, "HF_HOME": str(folder / "cache"), "TOKENIZERS_PARALLELISM": "false"}
    running, times = [], []
    for number in range(processes):
        command = [sys.executable, __file__, "--worker", way, str(number), str(folder)]
        running.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        )
        if way != WAYS[0] and number == 0:  # the other processes wait for the first
            times.append(json.loads(running[0].stdout.readline())[:2])  # type: ignore[union-attr]
    for process in running[len(times) :]:
        times.append(json.loads(process.stdout.readline())[:2])  # type: ignore[union-attr]
    for process in running:
        process.stdin.write("\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
    sizes = [json.loads(process.stdout.readline()) for process in running]  # type: ignore[union-attr]
    for process in running:
        process.communicate("\n")
    seconds, cpu = max(times)
    return seconds, cpu, sizes[-1]["private"] / 1000, sizes[-1]["shared"] / 1000


def main() -> None:
    """Print the table."""
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], sys.argv[3] == "0", Path(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4])
    args = parser.parse_args()

    from hf_multisource import MultiSourceProcessor
    from hf_multisource.data.files import read_lines
    from hf_multisource.recipes.tokenization import train_tokenizer

    with tempfile.TemporaryDirectory() as name:
        folder, texts = Path(name), []
        for column in (*NAMES, "cs"):
            lines = read_lines(next(args.data.glob(f"train.{column}*")))
            texts += lines
            copied = [f"{line} {copy}" for copy in range(args.copies) for line in lines]
            (folder / f"train.{column}").write_text("".join(f"{line}\n" for line in copied), encoding="utf-8")
        MultiSourceProcessor(train_tokenizer(texts, "bpe", 8000), NAMES).save_pretrained(folder / "processor")
        print(f"{len(copied):,} rows, {len(NAMES)} sources\n")
        print("| processes | way | seconds | CPU seconds | private, MB | shared, MB |\n|---|---|---|---|---|---|")
        for processes in args.processes:
            for file in folder.glob("cache/datasets/hf_multisource/*"):
                file.unlink()
            for way in WAYS:
                seconds, cpu, private, shared = measure(way, processes, folder)
                row = (processes, way, f"{seconds:.1f}", f"{cpu:.1f}", f"{private:.0f}", f"{shared:.0f}")
                print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
