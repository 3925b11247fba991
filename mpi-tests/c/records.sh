# shellcheck shell=bash
# What valgrind says of an MPI program: MPIs leave memory behind and send bytes that nobody wrote.

# faults SOURCE FILE...: the records, a paragraph each, that have a function of ours in them, or
# one of the program's SOURCE and none of MPI's. None, where there are none.
faults() {
    local source=$1
    shift
    sed -E 's/^==[0-9]+== ?//' "$@" | awk -v RS= -v source="[(]$source:[0-9]+[)]" '
        !/Invalid (read|write|free)|uninitialised|definitely lost/ || /LEAK SUMMARY/ { next }
        (/pinyard|pny_/ && !/MPI_Init/) || ($0 ~ source && !/MPI_|libmpi|libopen-/) { print $0 "\n" }'
}
