#!/usr/bin/env bash
# Prints a block of code, for the script that the block's fence names: by=SCRIPT as=NAME
# (xtask/pages/src/book/blocks.rs, which checks that the script reads it here). Of a console the
# commands, or with --printed what it shows below them. What the page only shows, such as
# where a user has installed something, is replaced by what is here: FROM=TO.
#
#   xtask/ci/block.sh [--printed] PAGE NAME [FROM=TO...]
set -euo pipefail
cd "$(dirname "$0")/../.."
printed=no
[ "${1:-}" != --printed ] || { printed=yes && shift; }
[ $# -ge 2 ] || { sed -n '2,8p' "$0" >&2; exit 2; }
page=$1 name=$2
shift 2
block=$(awk -v name="as=$name" -v printed="$printed" '
    inside && /^```$/ { exit }
    inside && !console { print }
    inside && console {
        if (!/^\$ / && !(goes_on && /^> /)) { goes_on = 0; if (printed == "yes") print; next }
        if (printed == "no") print substr($0, 3)
        goes_on = /\\$/
    }
    /^```[a-z]/ { for (word = 2; word <= NF; word++) if ($word == name) { inside = 1; console = $1 == "```console" } }
' "$page")
[ -n "$block" ] || { echo "block: $page has no block with as=$name" >&2; exit 1; }
for replacement; do
    from=${replacement%%=*}
    # One that replaces nothing is of an older page.
    [[ $block == *"$from"* ]] || { echo "block: $page, as=$name has no $from" >&2; exit 1; }
    block=${block//"$from"/"${replacement#*=}"}
done
printf '%s\n' "$block"
