#!/usr/bin/env python3
"""Markdown of what ci/gpu/pools.sh measured: pools_table.py default.jsonl expandable.jsonl"""
import json
import sys

rows, order = {}, []
for number, path in enumerate(sys.argv[1:]):
    for line in open(path):
        if not line.startswith("{"):
            continue
        row = json.loads(line)
        # Ours and cuMemAllocAsync ran in both; the first run stands.
        if number > 0 and "PyTorch" not in row["of"]:
            continue
        if row["row"] not in rows:
            rows[row["row"]] = {}
            order.append(row["row"])
        rows[row["row"]][row["of"]] = row


def cell(row):
    if row is None:
        return ""
    if "ms" in row:
        return f"{row['ms']:.0f} ms"
    text = f"{row['ns']:.0f}"
    if "p99" in row:
        text += f" ({row['p99']:.0f})"
    ratio = row.get("reserved_over_live")
    if ratio is not None and ratio < 100:
        text += f", {ratio:.2f}"
    if row.get("failed"):
        text += f", {row['failed']} failed"
    return text


columns = ["pinyard", "pinyard, virtual memory", "PyTorch", "PyTorch, expandable segments", "cuMemAllocAsync"]
print("| workload | " + " | ".join(columns) + " |")
print("| --- |" + " --- |" * len(columns))
for name in order:
    if name.startswith("W10"):
        continue
    print(f"| {name} | " + " | ".join(cell(rows[name].get(column)) for column in columns) + " |")
print()
print("| cold, 64 blocks of 64 MiB | cuMemHostAlloc | pinyard, pinned |\n| --- | --- | --- |")
for name in order:
    if name.startswith("W10"):
        print(f"| {name} | {cell(rows[name].get('cuMemHostAlloc'))} | {cell(rows[name].get('pinyard, pinned'))} |")
