#!/usr/bin/env bash
# Does `pinyard bench` measure, draw, save and compare, and say what is missing? A quick
# run of benchmarks of every kind, and programs made up for what goes wrong. Figures are
# not judged.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
target=${CARGO_TARGET_DIR:-$PWD/target}/release
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
said=$work/said
. xtask/ci/checks.sh

xtask/ci/build.sh release || cannot "build the programs that measure"
openmpi=${CARGO_TARGET_DIR:-$PWD/target}/openmpi
xtask/ci/build.sh openmpi || cannot "build gpu-bandwidth"
openmpi=$openmpi/release
unset PINYARD_PROGRAMS PINYARD_MPIRUN
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# bench STATUS ARGUMENTS...: the command ends with it; what it wrote is in out and err.
bench() {
    local wanted=$1 status=0
    shift
    limited 120 "$target/pinyard" bench "$@" > "$work/out" 2> "$work/err" < /dev/null || status=$?
    [ "$status" -eq "$wanted" ] && return
    echo "status $status, not $wanted: $*"
    cat "$work/out" "$work/err"
    return 1
}
says() { grep -qF -- "$2" "$work/$1" || { echo "no ${2@Q} in $1:"; cat "$work/$1"; return 1; }; }
narrow() { awk 'length($0) > 80 { print; wide = 1 } END { exit wide }' "$work/out"; }
# A program of that name in a folder of its own, for --programs.
made_up() {
    mkdir -p "$work/$1" && printf '#!/bin/sh\n%s\n' "$2" > "$work/$1/pinyard-bench" && chmod +x "$work/$1/pinyard-bench"
}

# ---- The programs' own tests -------------------------------------------------------------
# No other step runs them: the step `unit` leaves this crate out.
own() { timeout -k 5 600 cargo test --quiet --release -p pinyard-benches -p pinyard-cli --bins; }
check "the programs' own tests" own

# ---- What there is -----------------------------------------------------------------------
lists() { bench 0 --list && narrow && for name in cache.hit hooks.watched pools.workloads mpi.gpu instructions; do says out $name || return 1; done; }
check "the list" lists
typo() { bench 2 cache.hits && says err 'but "cache.hit"' && [ ! -s "$work/out" ]; }
check "a typo is told what it is like" typo

# ---- A run -------------------------------------------------------------------------------
some=(cache hooks backends pools.host pools.same-size pools.threads)
run() {
    bench 0 "${some[@]}" pools.pinned mpi.gpu --quick --programs "$target" --save "$work/run.json" --plot "$work/plots" && narrow &&
        says out 'get and release' && says out 'pinyard / it' && says out 'skipped: ' && says err 'cache.hit'
}
check "a run" run
quiet() { ! grep -P '\x1b|\r' "$work/out" "$work/err"; }
check "no colours and no bars where there is no terminal" quiet
whole() {
    python3 - "$work/run.json" "${some[@]}" << 'PYTHON'
import ctypes.util, json, math, pathlib, sys
document = json.load(open(sys.argv[1]))
assert document["schema"] == "pinyard-bench/1" and document["quick"], document
assert document["machine"]["cores"] > 0 and document["machine"]["kernel"], document["machine"]
assert not document["failed"], document["failed"]
for name in sys.argv[2:]:
    rows = [row for row in document["rows"] if row["benchmark"].startswith(name)]
    assert rows, f"no row of {name}"
    for row in rows:
        assert row["of"][0]["name"] == "pinyard", row
        for of in row["of"]:
            assert all(math.isfinite(of[key]) and of[key] >= 0 for key in ("median", "p25", "p75", "p99")), row
            assert of["p25"] <= of["median"] <= of["p75"], row
ours_alone = ("hooks.watched", "4096 buffers of 1 KiB, 8 KiB apart: pinned")
for peer, library, header in ("UCX", "ucs", "ucs/memory/rcache.h"), ("libfabric", "fabric", "rdma/fi_ext.h"):
    if not ctypes.util.find_library(library) or not (pathlib.Path("/usr/include") / header).exists():
        continue
    assert document["peers"].get(peer), (peer, document["peers"], document["skipped"])
    for row in document["rows"]:
        if row["benchmark"].startswith(("cache", "hooks")) and not {row["benchmark"], row["case"]} & set(ours_alone):
            assert peer in [of["name"] for of in row["of"]], (peer, row)
hits = [row for row in document["rows"] if row["case"] == "get and release"]
assert {row["at"]["value"] for row in hits} == {1, 100, 10_000}, hits
host = next(row for row in document["rows"] if row["benchmark"] == "pools.host")
assert "malloc" in [of["name"] for of in host["of"]], host
for skipped in document["skipped"]:
    assert skipped["why"] and skipped["remedy"], skipped
PYTHON
}
check "the JSON has a row and a summary for each, and a reason for each that is missing" whole
reasons() {
    bench 2 mpi.gpu pools.same-size --programs "$work" --json && python3 - "$work/out" << 'PYTHON'
import json, sys
skipped = {of["benchmark"]: of for of in json.load(open(sys.argv[1]))["skipped"]}
assert "gpu-bandwidth" in skipped["mpi.gpu"]["why"] and "cargo build" in skipped["mpi.gpu"]["remedy"], skipped
assert "pinyard-bench is not in" in skipped["pools.same-size"]["why"], skipped
PYTHON
}
without() {
    mkdir -p "$work/broken" && echo "not a library" > "$work/broken/libfabric.so.1" &&
        LD_LIBRARY_PATH=$work/broken bench 0 cache.strided --quick && says out 'skipped: libfabric in cache.strided'
}
# Of ranks, on simulated devices where there are no GPUs.
ranks() {
    bench 0 mpi.gpu --quick --programs "$target" --programs "$openmpi" --mpirun mpirun.openmpi --save "$work/ranks.json" --plot "$work/ranks" &&
        narrow && python3 - "$work/ranks.json" << 'PYTHON'
import json, sys
document = json.load(open(sys.argv[1]))
assert not document["skipped"] and not document["failed"], document
assert "Open MPI" in document["peers"], document["peers"]
rows = {(row["case"].split(",")[0], row["at"]["value"]): [of["name"] for of in row["of"]] for row in document["rows"]}
assert {operation for operation, _ in rows} == {"bcast", "allreduce"} and len(rows) > 8, rows
for names in rows.values():
    assert names[:3] == ["pinyard", "pinyard, staged", "MPI on copies"], names
PYTHON
}
check "two ranks, by every way that there is" ranks
check "a peer that cannot be opened is left out, and named" without
check "a program that is not there is a reason, and what to do" reasons
pictures() { # saved run, folder
    python3 - "$1" "$2" << 'PYTHON'
import json, pathlib, sys
import xml.etree.ElementTree as tree
names = {row["benchmark"] for row in json.load(open(sys.argv[1]))["rows"]}
for name in names:
    svg = tree.parse(pathlib.Path(sys.argv[2]) / f"{name}.svg").getroot()
    words = " ".join(text.strip() for text in svg.itertext())
    assert name in words and "pinyard" in words and "NaN" not in tree.tostring(svg).decode(), (name, words)
    assert len(svg.findall(".//{*}circle")) > 1, name
PYTHON
}
check "a picture of each" pictures "$work/run.json" "$work/plots"
check "a picture of the ranks'" pictures "$work/ranks.json" "$work/ranks"
again() {
    bench 0 --from "$work/run.json" && cp "$work/out" "$work/all" && says all 'pools.host' &&
        bench 0 --from "$work/run.json" --plot "$work/again" cache && says out 'cache.hit' && ! grep -q 'pools.host' "$work/out" &&
        cmp "$work/plots/cache.hit.svg" "$work/again/cache.hit.svg" && [ ! -e "$work/again/pools.host.svg" ]
}
check "the saved run, shown again whole and in part" again
terminal() {
    TERM=xterm script --quiet --return --command "stty cols 80; '$target/pinyard' bench cache.strided cache.memory --quick" "$work/typed" < /dev/null
    grep -q 'cache.strided .*\[=*\].*2 rows' "$work/typed" || { cat -v "$work/typed"; return 1; }
}
check "bars on a terminal" terminal

# ---- Comparison --------------------------------------------------------------------------
# The run, without what its samples scattered by, and with ours taking FACTOR times as long.
steady() { # factor, file
    python3 -c 'import json, sys
document = json.load(open(sys.argv[1]))
for row in document["rows"]:
    for of in row["of"]:
        median = of["median"] * (float(sys.argv[2]) if of["name"].startswith("pinyard") else 1)
        of.update({key: median for key in ("median", "p25", "p75", "p99")})
json.dump(document, open(sys.argv[3], "w"))' "$work/run.json" "$1" "$work/$2"
}
compared() { bench "$1" cache.hit --from "$work/now.json" --compare "$work/$2" && says out "$3"; }
check "a saved run without scatter" steady 1 now.json
check "a run beside itself is within noise" compared 0 now.json '12 compared: 0 slower, 0 faster, 12 within noise'
slower() { steady 0.5 other.json && compared 1 other.json '12 compared: 12 slower' && says out ' 2.00 '; }
check "a run that takes twice as long is slower" slower
faster() { steady 2 other.json && compared 0 other.json '12 compared: 0 slower, 12 faster'; }
check "one that takes half as long is faster" faster
said() { steady 0.5 other.json && bench 0 cache.hit --from "$work/now.json" --compare "$work/other.json" --noise 300 && says out '0 slower'; }
check "noise is what it is said to be" said
damaged() {
    head -c 400 "$work/run.json" > "$work/damaged.json" && echo '{"rows": []}' > "$work/foreign.json"
    bench 2 --compare "$work/damaged.json" && says err 'is not JSON' && says err '--save' && [ ! -s "$work/out" ] &&
        bench 2 --compare "$work/foreign.json" && says err 'no run of benchmarks' &&
        bench 2 --from "$work/none.json" && says err 'open' && says err 'none.json'
}
check "a damaged, a foreign and a missing file are refused" damaged
unwritable() { bench 2 cache.strided --quick --save "$work/none/run.json" && says err 'none/run.json' && [ ! -s "$work/out" ]; }
check "a file that cannot be written is refused before anything is measured" unwritable

# ---- The book ----------------------------------------------------------------------------
# Its commands, each measurement quick; that of everything is one benchmark here, `run` above
# has the rest.
of_page() {
    local block
    block=$(xtask/ci/block.sh docs/src/benchmarks.md bench '--quick =--quick cache.strided ' 'cache hooks=--quick cache hooks' '--save before.json=--quick cache.hit --save before.json' \
        '--compare before.json=--quick cache.hit --noise 1000 --compare before.json') || return
    (cd "$work" && mkdir -p page && cd page && PROGRAMS=$target PATH=$target:$PATH limited 200 bash -euo pipefail -c "$block")
}
check "the commands of the page" of_page

# ---- What goes wrong ---------------------------------------------------------------------
row='{"row":{"benchmark":"cache.hit","case":"made up","threads":1,"unit":"nanoseconds","of":[{"name":"pinyard","median":5.0,"p25":4.0,"p75":6.0,"p99":9.0,"samples":9,"left_out":0}]}}'
made_up talks "echo '[host] UCX WARN words of a library'; echo '{\"steps\":1}'; echo '$row'"
talks() { bench 0 cache.hit --programs "$work/talks" && says out 'made up' && ! grep -q WARN "$work/out"; }
check "lines of others on a program's output" talks
made_up dies "echo '$row'; echo 'the cause is this' >&2; kill -SEGV \$\$"
dies() { bench 3 cache.hit --programs "$work/dies" && says out 'FAILED: cache.hit' && says out 'signal: 11' && says out 'the cause is this'; }
check "a program that dies is named, with its last words" dies
made_up hangs "[ \$1 = cache.hit ] && exec echo '$row'; sleep 1000 & echo \$! > '$work/pid'; wait"
# Or a zombie that init has not looked at yet.
gone() { case $(ps -o stat= -p "$1") in '' | Z*) ;; *) return 1 ;; esac; }
interrupted() { # benchmarks...
    local command status=0
    rm -f "$work/pid"
    "$target/pinyard" bench "$@" --programs "$work/hangs" --save "$work/partial.json" > "$work/out" 2> "$work/err" < /dev/null &
    command=$!
    for _ in $(seq 100); do [ -s "$work/pid" ] && break; sleep 0.1; done
    kill -TERM $command && { wait $command || status=$?; }
    [ $status -eq 130 ] && says err interrupted && gone "$(cat "$work/pid")"
}
nothing() { interrupted cache.memory && [ ! -e "$work/partial.json" ]; }
check "an interrupt ends what was started, and saves no run without a row" nothing
partial() { interrupted cache.hit cache.memory hooks && bench 0 --from "$work/partial.json" && says out 'made up' && says out 'skipped: cache.memory, hooks.calls'; }
check "what was measured before an interrupt is saved" partial

counts
