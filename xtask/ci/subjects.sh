#!/usr/bin/env bash
# Is each commit's subject below 72 columns? Of those since this check: earlier ones are as they are.
# Sources without a history have none to look at.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ "$(git rev-parse --show-prefix 2> /dev/null || echo none)" = "" ] || exit 0
git log --since='2026-11-26 20:00 +0000' --format='%h %s' | awk '
    length($0) - length($1) - 1 > 71 { print "not below 72 columns: " $0; long = 1 }
    END { exit long }'
