#!/usr/bin/env bash
# Every script that git knows, read by the program shellcheck; .shellcheckrc has what it is told.
set -euo pipefail
cd "$(dirname "$0")/../.."
mapfile -t scripts < <({ git ls-files '*.sh' && git grep -nIE '^#!.*\b(ba)?sh$' | sed -n 's/:1:.*//p'; } | sort -u)
shellcheck "${scripts[@]}"
