# shellcheck shell=bash
# What valgrind says of an MPI program: MPIs leave memory behind and send bytes that nobody wrote.

# faults SOURCE FILE...: the records, a paragraph each, in which a frame is a function of ours, or
# a line of the program's SOURCE in a record without MPI's. None, where there are none.
#
# Only frames count ("at 0x4C2: function (file.c:3)", "by 0x4C2: function (in /folder/file.so)"),
# and of a frame its function, source line or file's own name. A folder may be called pinyard:
# its name is in the paths of frames, and in the lines that valgrind ends with.
faults() {
    local source=$1
    shift
    sed -E 's/^==[0-9]+== ?//' "$@" | awk -v RS= -v FS='\n' -v source="[(]$source:[0-9]+[)]" '
        !/Invalid (read|write|free)|uninitialised|definitely lost/ || /LEAK SUMMARY/ { next }
        {
            frames = ""
            for (i = 1; i <= NF; i++) {
                line = $i
                if (line !~ /^ +(at|by) 0x[0-9A-F]+: /) continue
                sub(/[(]in .*\//, "(in ", line)
                frames = frames line "\n"
            }
        }
        (frames ~ /: [^(]*(pinyard|pny_)|[(]in libpinyard/ && frames !~ /MPI_Init/) ||
            (frames ~ source && frames !~ /MPI_|libmpi|libopen-/) { print $0 "\n" }'
}
