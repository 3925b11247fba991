"""Turns cache.json into a page of the book, with the machine that it ran on."""
import json
import pathlib
import sys

document = json.loads(pathlib.Path(sys.argv[1]).read_text())
rows, machine = document["rows"], document["machine"]
ucx = document["ucx"] or "(absent)"
alone = {(row["group"], row["regions"]): row["pinyard"]["median"] for row in rows if row["threads"] == 1}
beside = {row["case"]: row["pinyard"] for row in rows if row["group"] == "beside"}
LOOKUP = {1: 4, 100: 6, 10_000: 16, 100_000: 100}
EVICT = {100: 120, 1000: 130, 10_000: 200}


def ratio(row):
    if not row["ucx"] or not row["ucx"]["median"]:
        return None
    return row["pinyard"]["median"] / row["ucx"]["median"]


def below(value, limit, unit=""):
    return f"at most {limit:,}{unit}: {'met' if value <= limit else 'missed'}"


def target(row):
    group, case, value = row["group"], row["case"], row["pinyard"]["median"]
    if group in ("hit", "lookup") and row["threads"] > 1:
        growth = value / alone[group, row["regions"]]
        return f"{growth:.2f} of one thread, {below(growth, 1.25)}"
    if group == "hit":
        return below(ratio(row), 0.6, " of UCX") if ratio(row) else ""
    if group == "lookup":
        return below(value, LOOKUP[row["regions"]], " ns")
    if group == "beside" and "beside" in case:
        rate = beside["hit, alone"]["median"] / value
        return f"at least 90 % of the rate alone: {100 * rate:.0f} %, {'met' if rate >= 0.9 else 'missed'}"
    if group == "beside" and "worst" in case:
        return below(value, 10_000, " ns")
    if group == "event":
        return below(value, 15 if case.startswith("nothing") else 50, " ns")
    if group == "first get" and case.startswith("a hit"):
        return below(value, 20_000, " ns")
    if group == "insert":
        return below(value, EVICT.get(row["regions"] if "cap" in case else 100), " ns")
    if group == "memory" and case.startswith("grown"):
        return below(value, 1 << 20, " bytes")
    return ""


def figure(value):
    if value is None:
        return "-"
    digits = 0 if value["median"] >= 1000 else 1
    return f"{value['median']:,.{digits}f} ({value['p99']:,.{digits}f})"


print(f"""# The registration cache beside UCX

`make bench` runs `benches/src/versus`: both caches in one process, taking turns
(hits: {document["operations"]:,} operations, {document["turns"]} turns each; what takes milliseconds: {document["slow_turns"]} turns or
more). An operation of a hit is one get and one release of 16 KiB among regions at a
stride of 32 KiB, dummy registration, hooks of both installed. Figures are per
operation and thread: the median turn, and the 99th percentile of the turns. Turns in
which the scheduler took the processor away are left out where others are left. UCX
has no lookup without a reference: its hit stands there. Only ratios carry over to
other machines. Raw rows: `docs/benchmarks/cache.json`.

Machine: {machine["cpu"]}, {machine["cores"]} cores, Linux {machine["kernel"]}, load {machine["load"]} at the end.

| | case | threads | regions | unit | pinyard (p99) | UCX {ucx} (p99) | pinyard / UCX | target |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |""")
for row in rows:
    quotient = f"{ratio(row):.2f}" if ratio(row) is not None else "-"
    cells = [row["group"], row["case"], str(row["threads"]), f'{row["regions"]:,}', row["unit"],
             figure(row["pinyard"]), figure(row["ucx"]), quotient, target(row)]
    print("| " + " | ".join(cells) + " |")
