"""Turns saved runs of `pinyard bench pools` into a table of the book: PyTorch's settings, for one,
run in processes of their own. A figure is of the first file that has it."""
import json
import pathlib
import sys

OURS, PEER = "pinyard", "PyTorch"
ORDER = [OURS, "pinyard, virtual memory", PEER, "PyTorch, expandable segments", "RMM pool", "CUB", "CCCL disjoint pool"]
# Rounds that a judgement needs: of two the median would be the longer.
LEAST = 3
RESERVED, FAILED = ": reserved over live", ": failed"
# What a row is called in the workloads' list, by the beginning of its case, and how many times
# faster than PyTorch's default it has to be, at the median and at the 99th percentile.
WORKLOADS = [
    ("pools.same-size", "", "W1", 5),
    ("pools.workloads", "1 to 256 MiB", "W2", 4),
    ("pools.workloads", "256 B to 64 MiB", "W3", 3),
    ("pools.workloads", "12 tensors", "W3b", 3),
    ("pools.workloads", "60 tensors", "W4a", 3),
    ("pools.workloads", "transformer, 24", "W4b", 3),
    ("pools.workloads", "transformer, batches", "W4c", 3),
    ("pools.workloads", "92 %", "W6", 5),
    ("pools.streams", "4 KiB", "W5", 1),
    ("pools.streams", "the same", "W5", None),
    ("pools.holes", "", "W7", None),
    ("pools.random", "", "W8", None),
    ("pools.threads", "", "W9", 1),
    ("pools.copies", "", "W10", 1),
    ("pools.pinned", "", "W10", 3),
    ("pools.shortage", "4 GiB", "W11", None),
    ("pools.shortage", "longest", "W12", None),
    ("pools.shortage", "idle", "W12", None),
    ("pools.registered", "", "W13", None),
]


def workload(row):
    for benchmark, case, name, aim in WORKLOADS:
        if row["benchmark"] == benchmark and row["case"].startswith(case):
            return name, aim
    return "", None


def size(count):
    for unit, name in (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} B"


def point(row):
    if "at" not in row:
        return ""
    axis, value = row["at"]["axis"], row["at"]["value"]
    return f", {size(value)}" if axis == "bytes" else f", {value:,} {axis[:-1] if value == 1 else axis}"


def time(nanoseconds):
    for unit, name in (1e9, " s"), (1e6, " ms"), (1e4, " us"):
        if nanoseconds >= unit:
            return f"{nanoseconds / (1e3 if unit == 1e4 else unit):.3g}{name}"
    return f"{nanoseconds:.0f}" if nanoseconds >= 100 else f"{nanoseconds:.3g}"


def read(paths):
    """Rows by benchmark, case and point, each with a subject's summary by name."""
    rows, machines = {}, []
    for path in paths:
        document = json.loads(pathlib.Path(path).read_text())
        if document["quick"]:
            sys.exit(f"{path} is of --quick: it has no figures to publish")
        machines.append((pathlib.Path(path).name, document))
        for row in document["rows"]:
            if not row["benchmark"].startswith("pools.") or row["benchmark"] == "pools.host":
                continue
            known = rows.setdefault((row["benchmark"], row["case"], point(row)), {**row, "of": {}})
            for subject in row["of"]:
                known["of"].setdefault(subject["name"], subject)
    return rows, machines


def beside(rows, row, benchmark, case):
    """The row that says more of the same: its figures by subject."""
    found = rows.get((benchmark, case, point(row)))
    return {name: of["median"] for name, of in found["of"].items()} if found else {}


def cell(row, name, reserved, failed):
    of = row["of"].get(name)
    if of is None:
        return ""
    if row["unit"] != "nanoseconds":
        return f"{of['median']:.3g}"
    text = time(of["median"])
    if of["samples"] > 1:
        text += f" ({time(of['p99'])})"
    if name in reserved:
        text += f", {reserved[name]:.2f}"
    if failed.get(name):
        text += f", {failed[name]:,.0f} failed"
    return text


def judged(row, aim):
    """How many times as long a peer takes, and whether that is what is aimed at."""
    peer = "cuMemHostAlloc" if row["benchmark"] == "pools.pinned" else PEER
    ours, theirs = row["of"].get(OURS), row["of"].get(peer)
    if not ours or not theirs or not ours["median"] or not ours["p99"]:
        return "", ""
    if not LEAST <= min(ours["samples"], theirs["samples"]):
        return f"{theirs['median'] / ours['median']:.1f}", "few rounds"
    times = [theirs[of] / ours[of] for of in ("median", "p99")]
    text = ", ".join(f"{each:.2f}" if each < 1 else f"{each:.1f}" for each in times)
    return text, "" if aim is None else f"{aim}: " + ("met" if min(times) >= aim else "**missed**")


def timed(rows, row):
    """The benchmark that times the same trace."""
    return next((benchmark for benchmark, case, _ in rows if case == row["case"] and benchmark != row["benchmark"]), "")


def header(*cells):
    print("| " + " | ".join(cells) + " |\n|" + " --- |" * len(cells))


def main():
    rows, machines = read(sys.argv[1:])
    shown = [
        row
        for (benchmark, case, _), row in rows.items()
        if benchmark != "pools.calls" and not case.endswith((RESERVED, FAILED))
    ]
    order = [name for _, _, name, _ in WORKLOADS]
    shown.sort(key=lambda row: order.index(workload(row)[0]) if workload(row)[0] else len(order))
    if not shown:
        sys.exit("usage: pools_table.py FILE...: none of them has a row of a pool")
    names = {name for row in shown for name in row["of"]}
    names = [name for name in ORDER if name in names] + sorted(names - set(ORDER))
    for name, document in machines:
        machine = document["machine"]
        peers = ", ".join(f"{peer} {version}".strip() for peer, version in document["peers"].items())
        print(f"`{name}`: {machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}; {peers}.")
    print("\nNanoseconds per operation where no unit is given: median (99th percentile), peak reserved over")
    print("peak live, allocations that failed.\n")
    header("workload", *names, "PyTorch / pinyard", "aim")
    for row in shown:
        case = row["case"]
        # One block of 512 B in a slab says nothing of what is reserved.
        reserved = {} if case == "one block" else beside(rows, row, row["benchmark"], case + RESERVED)
        failed = beside(rows, row, row["benchmark"], case + FAILED)
        name, aim = workload(row)
        cells = [cell(row, subject, reserved, failed) for subject in names]
        print("| " + " | ".join([f"{name} {case}{point(row)}".strip(), *cells, *judged(row, aim)]) + " |")
    calls = [row for (benchmark, _, _), row in rows.items() if benchmark == "pools.calls"]
    if not calls:
        return
    print("\nCalls of the driver for 1,000 operations of a steady state, those below CUDA's runtime included:\n")
    names = [name for name in names if any(name in row["of"] for row in calls)]
    header("workload", *names)
    for row in calls:
        name, _ = workload({**row, "benchmark": timed(rows, row)})
        cells = [f"{row['of'][of]['median']:.4g}" if of in row["of"] else "" for of in names]
        print("| " + " | ".join([f"{name} {row['case']}{point(row)}".strip(), *cells]) + " |")


main()
