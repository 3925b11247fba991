#!/bin/bash
# Programs that have nothing to do with pinyard, with and without libpinyard_preload.so:
# the same output, the same status, no line from us; and how much longer they take. The times
# fail nothing.
#
#   mpi-tests/preload/beside.sh [TURNS]      5 turns of each without
set -u
cd "$(dirname "$0")/../.." || exit 2
turns=${1:-5}
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd) || exit 2
out=$(mktemp -d) || exit 2
trap 'rm -rf "$out"' EXIT
said=$out/said
. xtask/ci/checks.sh
xtask/ci/build.sh release || cannot "build libpinyard_preload.so"
preload=$target/release/libpinyard_preload.so
for name in $(compgen -e | grep -E '^(FI_|UCX_|OMPI_|PMIX_|PRTE_|PINYARD_|LD_PRELOAD$)' || true); do unset "$name"; done
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Variables of the runs with the library.
settings=()

# The program's own output and status under $1 (with or without); the time that it took of
# the processor, its children's included, in microseconds.
run() { # with|without, arguments...
	local how=$1 variables=()
	shift
	[ "$how" = with ] && variables=("LD_PRELOAD=$preload" "${settings[@]}")
	mkdir -p "$out/$how"
	(
		cd "$out/$how" || exit
		TIMEFORMAT='%U %S'
		time limited 120 env "${variables[@]}" "$@" >stdout 2>stderr
		echo $? >status
	) 2>"$out/times"
	awk '{ print int(($1 + $2) * 1e6) }' "$out/times" >>"$out/$how.times"
}

median() { sort -n "$1" | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }

# What is compared: by default everything that the program wrote.
whole() { cat "$1/status" "$1/stdout" "$1/stderr"; }

beside() { # name, what is compared, turns, program, arguments...
	if command -v "$4" >/dev/null; then check "$1" is_the_same "${@:2}"; else skip "$1: no $4"; fi
}
is_the_same() {
	local compared=$1 count=$2 how
	shift 2
	rm -f "$out"/*.times
	for ((turn = 0; turn < count; turn++)); do
		for how in without with; do run $how "$@"; done
		diff <("$compared" "$out/without") <("$compared" "$out/with") >"$out/diff" ||
			{ echo "< without, > with" && head -20 "$out/diff" && return 1; }
	done
	[ "$(cat "$out/without/status")" -eq 0 ] || { echo "by itself:" && tail -5 "$out/without/stderr" && return 1; }
	noted=$(awk -v a="$(median "$out/without.times")" -v b="$(median "$out/with.times")" \
		'BEGIN { printf "%.1f ms of the processor, with %.1f ms", a / 1000, b / 1000 }')
}

cat >"$out/parts.py" <<'EOF'
import hashlib, multiprocessing, numpy

def part(seed):
    chance = numpy.random.default_rng(seed)
    a = chance.standard_normal((300, 300))
    u, s, v = numpy.linalg.svd(a)
    big = numpy.zeros(8 << 20, dtype=numpy.uint8)  # mapped and unmapped by malloc
    big[:: 4096] = seed
    assert numpy.allclose(u * s @ v, a)
    return hashlib.sha256(numpy.round(s, 6).tobytes() + big.tobytes()).hexdigest()

print(*(part(seed) for seed in range(10)), sep="\n")
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(*pool.map(part, range(10, 14)), sep="\n")
EOF
cat >"$out/work.js" <<'EOF'
const { Worker, isMainThread, parentPort, workerData } = require("worker_threads");
const { createHash } = require("crypto");
const digest = (seed) => {
	const parts = [];
	for (let i = 0; i < 200; i++) parts.push(Buffer.alloc(1 << 16, (seed + i) & 255));
	return createHash("sha256").update(Buffer.concat(parts)).digest("hex");
};
if (isMainThread) {
	const all = [0, 1, 2].map((seed) => new Promise((done, fail) =>
		new Worker(__filename, { workerData: seed }).on("message", done).on("error", fail)));
	Promise.all(all).then((said) => console.log(said.join("\n"), digest(9)));
} else parentPort.postMessage(digest(workerData));
EOF
python3 - "$out/source.c" <<'EOF'
import sys
with open(sys.argv[1], "w") as source:
    for number in range(150):
        source.write(f"int f{number}(int *a, int n) {{ int s = {number}; for (int i = 0; i < n; i++) s += a[i] * (i ^ s); return s; }}\n")
EOF
# HPC Challenge, small: MPI, BLAS and its own checks.
hpcc_input=$out/hpccinf.txt
cat >"$hpcc_input" <<'EOF'
HPLinpack benchmark input file
Innovative Computing Laboratory, University of Tennessee
HPL.out      output file name (if any)
8            device out (6=stdout,7=stderr,file)
1            # of problems sizes (N)
300          Ns
1            # of NBs
64           NBs
0            PMAP process mapping (0=Row-,1=Column-major)
1            # of process grids (P x Q)
1            Ps
2            Qs
16.0         threshold
1            # of panel fact
2            PFACTs (0=left, 1=Crout, 2=Right)
1            # of recursive stopping criterium
4            NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (0=left, 1=Crout, 2=Right)
1            # of broadcast
1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
1            DEPTHs (>=0)
2            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
EOF
# Its times and residuals' digits differ from run to run: what it judges does not. A transpose
# has one line for the clock and one for the processor's time, and the latter is left out
# where that was too short to be seen.
hpcc_verdicts() {
	cat "$1/status"
	grep -av '^CPU ' "$1/hpccoutf.txt" |
		grep -oE '(PASSED|FAILED|Success=[0-9]+|Failure|MPIRandomAccess_Errors=[0-9]+|RandomAccess_Errors=[0-9]+)' | sort | uniq -c
}
object() { cat "$1/status" "$1/stderr" && sha256sum <"$1/source.o"; }

beside "ls" whole "$turns" ls -laR --time-style=+ /usr/share/doc
# shellcheck disable=SC2016 # awk's own
beside "bash, sort, awk" whole "$turns" bash -c 'seq 100000 | sort -R --random-source=/etc/passwd | awk "{ s += \$1 * NR } END { print s }"'
beside "tar, gzip" whole "$turns" bash -c 'tar -c --sort=name --mtime=@0 -C /usr/include . | gzip -n1 | sha256sum'
beside "gcc" object "$turns" gcc -O2 -c "$out/source.c" -o source.o
beside "python3, numpy" whole "$turns" /usr/bin/python3 "$out/parts.py"
beside "node, workers" whole "$turns" node "$out/work.js"
mkdir -p "$out"/with "$out"/without
for how in with without; do cp "$hpcc_input" "$out/$how/"; done
# Over libfabric, whose cache the library puts its monitor under: what it says there is the
# proof that both ranks have had it.
export FI_TCP_IFACE=lo
settings=(PINYARD_LOG=info)
beside "hpcc, Open MPI, 2 ranks" hpcc_verdicts 1 mpirun.openmpi --oversubscribe \
	--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include tcp -n 2 hpcc
both_had_it() {
	tail -5 "$out/with/stderr"
	[ "$(grep -cE '^pinyard: rank [01], pid [0-9]+: libfabric .* memory monitor imported' "$out/with/stderr")" -eq 2 ]
}
[ ! -e "$out/with/hpccoutf.txt" ] || check "hpcc, with: both ranks had the library" both_had_it
counts
