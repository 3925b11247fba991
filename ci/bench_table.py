"""Turns hit.json into a page of the book, with the machine that it ran on."""
import json
import pathlib
import re
import sys

document = json.loads(pathlib.Path(sys.argv[1]).read_text())
rows, ucx = document["rows"], document["ucx"]
cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
kernel = pathlib.Path("/proc/version").read_text().split()[2]
cores = pathlib.Path("/proc/cpuinfo").read_text().count("processor\t")
load = pathlib.Path("/proc/loadavg").read_text().split()[0]

print(f"""# Hits beside UCX

`make bench` runs `benches/src/versus_ucx.rs`: both caches in one process, taking
turns of {document["operations"]:,} operations, {document["turns"]} turns each. An operation is one get and one
release of 16 KiB among regions at a stride of 32 KiB, dummy registration, hooks
of both installed. Figures are nanoseconds per operation and thread: the median
turn, and the 99th percentile of the turns. Only the ratio carries over to other
machines. Raw rows: `docs/benchmarks/hit.json`.

Machine: {cpu.group(1) if cpu else "unknown"}, {cores} cores, Linux {kernel}, load {load} at the end.

| threads | regions | pattern | pinyard (p99) | pinyard lookup | UCX {ucx} (p99) | pinyard / UCX | target |
| --- | --- | --- | --- | --- | --- | --- | --- |""")
alone = {row["regions"]: row["pinyard_ns"] for row in rows if row["threads"] == 1}
for row in rows:
    lookup = f'{row["lookup_ns"]:.1f}' if row["lookup_ns"] is not None else "-"
    if row["threads"] == 1:
        met = row["ratio"] <= 0.6
        target = f'at most 0.6 of UCX: {"met" if met else "missed"}'
    else:
        growth = row["pinyard_ns"] / alone[row["regions"]]
        target = f'at most 1.25 of one thread: {growth:.2f}, {"met" if growth <= 1.25 else "missed"}'
    print(f'| {row["threads"]} | {row["regions"]:,} | {row["pattern"]} | {row["pinyard_ns"]:.1f} ({row["pinyard_p99_ns"]:.1f})'
          f' | {lookup} | {row["ucx_ns"]:.1f} ({row["ucx_p99_ns"]:.1f}) | {row["ratio"]:.2f} | {target} |')
