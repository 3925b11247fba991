"""Turns a saved run of `pinyard bench` into a page of the book, with the machine that it ran on."""
import json
import pathlib
import sys

path = pathlib.Path(sys.argv[1])
document = json.loads(path.read_text())
machine, peers = document["machine"], document["peers"]
HIT, LOOKUP = "get and release", "lookup, no reference"
LOOKUP_NS = {1: 4, 100: 6, 10_000: 16, 100_000: 100}
EVICT_NS = {100: 120, 1000: 130, 10_000: 200}


def median(row, of="pinyard"):
    found = [subject["median"] for subject in row["of"] if subject["name"] == of]
    return found[0] if found else None


def at(row):
    return row.get("at", {}).get("value")


def ratio(row, peer):
    ours, theirs = median(row), median(row, peer)
    return ours / theirs if ours is not None and theirs else None


alone = {(row["case"], at(row)): median(row) for row in document["rows"] if row["threads"] == 1}
beside = {row["case"]: median(row) for row in document["rows"] if row["benchmark"] == "cache.beside"}


def below(value, limit, unit=""):
    return f"at most {limit:,}{unit}: {'met' if value <= limit else 'missed'}"


def target(row):
    benchmark, case, value = row["benchmark"], row["case"], median(row)
    if benchmark == "cache.hit" and row["threads"] > 1:
        growth = value / alone[case, at(row)]
        return f"{growth:.2f} of one thread, {below(growth, 1.25)}"
    if benchmark == "cache.hit" and case == HIT:
        return below(ratio(row, "UCX"), 0.6, " of UCX") if ratio(row, "UCX") else ""
    if benchmark == "cache.hit":
        return below(value, LOOKUP_NS[at(row)], " ns")
    if case == "hit, beside registrations of 2 ms":
        rate = beside["hit, alone"] / value
        return f"at least 90 % of the rate alone: {100 * rate:.0f} %, {'met' if rate >= 0.9 else 'missed'}"
    if case.startswith("worst hit"):
        return below(value, 10_000, " ns")
    if case.startswith("event, "):
        return below(value, 15 if "nothing" in case else 50, " ns")
    if case.startswith("first get, a "):
        return below(value, 20_000, " ns")
    if benchmark == "cache.insert":
        return below(value, EVICT_NS[at(row) or 100], " ns")
    if case.startswith("grown"):
        return below(value, 1 << 20, " bytes")
    return ""


def judged(row):
    text, ours = target(row), row["of"][0]
    if not text or ours["name"] != "pinyard" or ours["samples"] >= 5 or ours["samples"] == 1 and not ours["left_out"]:
        return text
    # Turns that nothing disturbed, or all where none was quiet (benches/src/turns.rs).
    quiet = 0 if ours["samples"] == ours["left_out"] else ours["samples"]
    return f"{text}, of {quiet} quiet turns"


def figure(row, of):
    found = [subject for subject in row["of"] if subject["name"] == of]
    if not found:
        return "-"
    value = found[0]
    digits = 0 if value["median"] >= 1000 else 1
    p99 = f" ({value['p99']:,.{digits}f})" if value["samples"] > 1 else ""
    return f"{value['median']:,.{digits}f}{p99}"


UNITS = {"nanoseconds": "ns"}


def where(row):
    return f'{at(row):,} {row["at"]["axis"]}' if "at" in row else ""


print(f"""`pinyard bench`, {document["seconds"]:.0f} s on {machine["cpu"]}, {machine["cores"]} cores,
Linux {machine["kernel"]}, load {machine["load"]} at the end. Figures are per operation and thread: the median
turn, and in brackets the 99th percentile of the turns. Only ratios carry over to other
machines.""")
for benchmark in dict.fromkeys(row["benchmark"] for row in document["rows"]):
    rows = [row for row in document["rows"] if row["benchmark"] == benchmark]
    names = list(dict.fromkeys(subject["name"] for row in rows for subject in row["of"]))
    others = [name for name in names if name != "pinyard"]
    targets = any(target(row) for row in rows)
    head = ["", "threads", "", "unit", *[f"{name} {peers.get(name, '')}".strip() for name in names],
            *[f"pinyard / {name}" for name in others], *["target"] * targets]
    print(f"\n**{benchmark}**\n\n| " + " | ".join(head) + " |")
    print("| " + " | ".join(["---"] * len(head)) + " |")
    for row in rows:
        quotients = [f"{ratio(row, name):.2f}" if ratio(row, name) is not None else "-" for name in others]
        cells = [row["case"], str(row["threads"]), where(row), UNITS.get(row["unit"], row["unit"]),
                 *[figure(row, name) for name in names], *quotients, *[judged(row)] * targets]
        print("| " + " | ".join(cells) + " |")
