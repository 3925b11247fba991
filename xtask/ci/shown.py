#!/usr/bin/env python3
"""Is what a page shows of a command what the command printed?

shown.py PRINTED SHOWN: two files. Numbers and the width of columns may differ; `...` in a line
of its own stands for anything. Paragraph after paragraph is looked for, its
lines as they stand there or, where numbers have other lengths, wrapped in other places; failing
that line after line, with others printed between them.
"""
import re
import sys


def plain(line):
    return re.sub(r"[\s─]+", " ", re.sub(r"\d[\d.,]*", "N", line)).strip()


def paragraphs(lines):
    """Runs of lines that are not blank."""
    run = []
    for line in lines + [""]:
        if line and line != "...":
            run.append(line)
        elif run:
            yield run
            run = []


def find(run, printed, at):
    """Where the printed lines go on after the run, which begins and ends with a line; None if it is not there."""
    wanted = " ".join(run)
    for start in range(at, len(printed)):
        text = ""
        for end in range(start, len(printed)):
            text = f"{text} {printed[end]}".strip()
            if text == wanted:
                return end + 1
            if not wanted.startswith(text):
                break
    return None


def main():
    printed, shown = ([plain(line) for line in open(path, encoding="utf-8")] for path in sys.argv[1:3])
    printed = [line for line in printed if line]
    at = 0
    for run in paragraphs(shown):
        whole = find(run, printed, at)
        if whole is not None:
            at = whole
            continue
        for line in run:
            if line not in printed[at:]:
                sys.exit(f"shown and not printed: {line}")
            at = printed.index(line, at) + 1


main()
