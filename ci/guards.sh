#!/usr/bin/env bash
# Each invariant has a line that guards it and a test that notices when the line
# is gone. Here the line is taken out, in a copy of the tree, and the test must
# fail. A test that still passes proves nothing, and fails this script.
# `ci/guards.sh PATTERN` takes only the guards whose names match it. Without one, two lanes
# take turns, each with a copy and builds of its own: a change of one crate keeps one core
# busy.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
if [ $# -eq 0 ] && [ -z "${LANE:-}" ]; then
    for lane in 0 1; do LANE=$lane ci/guards.sh > "$copy/$lane" 2>&1 & done
    wait
    grep -hvE '^[0-9]+ passed, ' "$copy"/[01]
    # A lane that does not come to its end has failed.
    awk '/^[0-9]+ passed, / { passed += $1; failed += $3; lanes++ }
        END { failed += 2 - lanes; print passed + 0 " passed, " failed " failed"; exit failed != 0 }' "$copy"/[01]
    exit
fi
# -m: the copy is newer than anything built from an earlier one.
git ls-files -z | tar --null -T - -c | tar -x -m -C "$copy"
export CARGO_INCREMENTAL=1
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/guards${LANE:-}
passed=0 failed=0 only=${1:-.} number=0

# Whether the guard of this name is asked for, and this lane's.
wanted() {
    [[ $1 =~ $only ]] || return
    number=$((number + 1))
    [ -z "${LANE:-}" ] || [ $((number % 2)) -eq "$LANE" ]
}

# change FILE LINE REPLACEMENT: takes the line out in the copy, if there is one of it.
change() {
    cp "$1" "$copy/$1"
    python3 - "$copy/$1" "$2" "$3" << 'EOF' || { failed=$((failed + 1)) && return 1; }
import sys
path, line, replacement = sys.argv[1:]
text = open(path).read()
if text.count(line) != 1:
    sys.exit(f"{path}: {text.count(line)} places match the guard {line!r}")
open(path, "w").write(text.replace(line, replacement))
EOF
}

# guard NAME FILE LINE REPLACEMENT PACKAGE TEST...
guard() {
    local name=$1 file=$2 line=$3 replacement=$4 package=$5 log=$copy/log
    shift 5
    wanted "$name" && change "$file" "$line" "$replacement" || return
    if ! (cd "$copy" && cargo test --quiet --no-run "${profile[@]}" -p "$package" "$@") > "$log" 2>&1; then
        echo "$name: does not compile without its guard" && tail -20 "$log" && failed=$((failed + 1))
        cp "$file" "$copy/$file"
        return
    fi
    (cd "$copy" && timeout -k 5 240 cargo test --quiet "${profile[@]}" -p "$package" "$@") > "$log" 2>&1
    local status=$?
    cp "$file" "$copy/$file"
    if [ "$status" -eq 0 ]; then
        echo "$name: the test passes without the guard in $file" && failed=$((failed + 1))
    elif grep -q 'FAILED\|panicked' "$log"; then
        echo "$name: noticed" && passed=$((passed + 1))
    else
        echo "$name: ended with status $status but no test failed" && tail -20 "$log" && failed=$((failed + 1))
    fi
}

# As guard, but the change must not compile: the borrow checker is the test.
refused() {
    local name=$1 file=$2 line=$3 replacement=$4 package=$5 log=$copy/log
    wanted "$name" && change "$file" "$line" "$replacement" || return
    (cd "$copy" && cargo check --quiet -p "$package") > "$log" 2>&1
    cp "$file" "$copy/$file"
    if grep -q 'E0502\|E0499' "$log"; then
        echo "$name: does not compile" && passed=$((passed + 1))
    else
        echo "$name: it compiles, or fails otherwise" && tail -20 "$log" && failed=$((failed + 1))
    fi
}

# As guard, but the test is a script, which says "FAILED  WORDS". Each builds several
# packages, so they run where they are asked for by name, as before a release:
# scripted NAME FILE LINE REPLACEMENT WORDS SCRIPT...
scripted() {
    local name=$1 file=$2 line=$3 replacement=$4 words=$5 log=$copy/log
    shift 5
    [ "$only" != . ] && wanted "$name" && change "$file" "$line" "$replacement" || return
    (cd "$copy" && timeout -k 5 400 "$@") > "$log" 2>&1
    cp "$file" "$copy/$file"
    if grep -q "^FAILED  $words" "$log"; then
        echo "$name: noticed" && passed=$((passed + 1))
    elif grep -q '^skipped: ' "$log"; then
        echo "$name: $(grep -m 1 '^skipped: ' "$log")"
    else
        echo "$name: $1 does not notice that the guard in $file is gone" && tail -20 "$log" && failed=$((failed + 1))
    fi
}

hooks=pinyard-hooks registry=pinyard-registry coverage=pinyard-coverage
profile=()
guard '1 hook keeps errno' hooks/src/entry.rs 'if (-4095..0).contains(&result) {' 'if result < 4096 {' \
    $hooks --test the_hook_itself keeps_errno
guard '1 no other system call' hooks/src/entry.rs 'let result = change();
    after(ticket, first.0, first.1);' 'let result = change();
    // SAFETY: getpid, which is what must be noticed.
    unsafe { syscall6(libc::SYS_getpid as usize, [0; 6]) };
    after(ticket, first.0, first.1);' \
    $hooks --test the_hook_itself makes_no_other_system_call
guard 'patching: no boundary is covered' hooks/src/patch/x86_64.rs 'if length >= NEAR && at == entry {' 'if at == entry {' \
    $hooks --test flips what_is_taken_out
guard 'patching: an old jump of ours leads past us' hooks/src/patch/trampolines.rs 'set_mode(function, Mode::Past(next));
    generation' 'let _ = next;
    generation' \
    $hooks --test neighbours_in_text whoever_calls
guard '2 whoever makes text writable is noticed' hooks/src/entry.rs 'if text::touches(addr, len) {' 'if false {' \
    $registry --test a_later_patcher
guard '2 nothing counts while text is writable' hooks/src/text.rs 'WRITABLE.load(SeqCst) == 0' 'true' \
    $hooks --test neighbours_in_text nothing_counts
guard 'install: a foreign hook is vouched for by its own call alone' hooks/src/self_test.rs \
    '(own || is_wide)' '(own || is_wide || true)' \
    $hooks --test neighbours_in_text others_events
guard 'install: nothing asks the loader under the lock' hooks/src/install.rs $'prepare();\n    named(with(install_locked))' 'named(with(|state| { prepare(); install_locked(state) }))' \
    $hooks --test constructors a_constructor_installs
guard 'install: who leaves wakes who sleeps' hooks/src/holder.rs 'wake_one(&self.word);' '' \
    $hooks --test constructors constructors_use
guard 'self-test: an impossible call is not made' hooks/src/entry.rs 'if let Some(errno) = refused::errno(function, &args, next) {' 'if let Some(errno) = refused::errno(function, &args, next).filter(|_| false) {' \
    $hooks --test asks_for_nothing a_filter_that_kills
guard 'self-test: nor is an impossible brk' hooks/src/entry_break.rs $'if refused::is_break(new, 0) {\n        return 0;' $'if refused::is_break(new, 0) && false {\n        return 0;' \
    $hooks --test asks_for_nothing a_filter_that_kills
guard 'self-test: an impossible brk is none of another patcher' hooks/src/entry_break.rs 'if next != 0 && !refused::is_break(new, next) {' 'if next != 0 {' \
    $hooks --test neighbours_in_text the_self_tests_brk
guard "self-test: libc's own sbrk is seen as brk is" hooks/src/install.rs 'let seen = if self_test::brk_is_seen() {' 'let seen = if self_test::call(function) == Seen::Yes {' \
    $hooks --test asks_for_nothing a_filter_that_kills
guard 'a break without a record may lie anywhere' hooks/src/effect.rs '(_, 0) => (new, above(new)),' '' \
    $hooks --test asks_for_nothing a_program_without
guard 'a refused brk stores nothing' hooks/src/entry_break.rs 'if now == new || new == 0 || current_break() == 0 {' 'if true {' \
    $hooks --test asks_for_nothing a_refused_brk
guard "threads: userfaultfd's has room beside static TLS" hooks/src/userfaultfd.rs 'let stack = stack_size(STACK);' 'let stack = STACK;' \
    $registry --test large_tls
guard 'threads: the reaper has room beside static TLS' registry/src/reaper.rs '"pinyard-reaper", stack_size(THREAD_STACK)' '"pinyard-reaper", THREAD_STACK' \
    $registry --test large_tls
guard 'threads: one that cannot be had is said once' registry/src/told.rs $'if SAID.swap(true, Relaxed) {\n        return;' $'if SAID.swap(true, Relaxed) && false {\n        return;' \
    $registry --test large_tls
guard "2 a late event: mmap's addresses are published" hooks/src/entry.rs 'fresh::mapped(at, effect::length(len, flags))' 'at' \
    $registry --test late_events
guard "2 a late event: those of mmap's number" hooks/src/entry.rs 'return fresh::mapped(at, effect::length(b, d as i32));' 'return at;' \
    $registry --test late_events
guard "2 a late event: mremap's" hooks/src/entry.rs 'fresh::remapped(at, old, old_len, len)' 'at' \
    $registry --test late_events
guard "2 a late event: shmat's" hooks/src/entry_shared.rs 'fresh::attached(at)' 'at' \
    $registry --test late_events
guard "2 a late event: a growing break's" hooks/src/entry_break.rs $'if result == 0 {\n        fresh::grown(current, new);' $'if false {\n        fresh::grown(current, new);' \
    $registry --test late_events
guard "2 a late event: a slab's" hooks/src/fresh.rs 'mapped(at as isize, len);' '' \
    $registry --test late_events
guard 'install: the object of the hooks stays loaded' hooks/src/libc_functions.rs $'    keep_loaded();\n    // SAFETY: the C' '    // SAFETY: the C' \
    $coverage --test unloaded
guard 'fork: an abandoned installer is taken over' hooks/src/holder.rs 'Err(holder) if holder == us =>' 'Err(holder) if holder != FREE =>' \
    $hooks --test forks a_child_of_a_fork
guard '2 published before the change' hooks/src/monitor.rs $'let ticket = BEGUN.ticket();\n        publish(start, len);' 'let ticket = BEGUN.ticket();' \
    $registry --test every_change_is_noticed
guard '2 a hit looks at the mark' hooks/src/map/slot.rs 'self.0 & (PHASE | STALE) == LIVE' 'self.0 & PHASE == LIVE' \
    $registry --test every_change_is_noticed
guard '2 a hit looks at the epoch' registry/src/regions.rs $'slot.epoch() != epoch || !serves(slot, start, len, access) {\n            return None;\n        }\n        let count' $'!serves(slot, start, len, access) {\n            let _ = epoch;\n            return None;\n        }\n        let count' \
    $registry --test lifetimes more_wide_events
guard '2 a change during the registration' hooks/src/map/mod.rs $'if mask != 0 {\n            self.mark_coming(mask, start, last);\n        }' 'let _ = mask;' \
    $registry --test no_stale_hit a_change_during
guard '2 a hook looks for registrations under way' hooks/src/map/mod.rs $'self.coming.mask.load(Acquire) != 0\n            ||' '' \
    $registry --test no_stale_hit a_change_during
guard '3 a miss elsewhere does not wait' registry/src/cache.rs \
    'flight.range.contains(range) && flight.access.contains(access) && self.doom(flight.slot).is_none()' 'let _ = (range, access); self.doom(flight.slot).is_none()' \
    $registry --test lifetimes hits_never_wait
guard '4 what no event can describe takes everything out' hooks/src/inbox.rs 'self.overflow.store(true, Release);' '' \
    $hooks --lib a_full_inbox_orders
guard '4 what finds no place is not dropped' hooks/src/inbox.rs '|| self.near.widen(event))' '|| true)' \
    $registry --test lifetimes more_wide_events
guard '4 what finds no place takes out what is near' hooks/src/inbox.rs '|| self.near.widen(event))' ')' \
    $hooks --lib a_storm_of_wide_events
guard '4 what a wide event left is applied' registry/src/cache/draining.rs 'self.apply_wide(SLICE);' 'self.writer.wide.clear(); self.cache.map.finish_drain();' \
    $registry --test lifetimes more_wide_events
guard '2 readers wait for a drain' hooks/src/map/mod.rs 'self.news.fetch_or(DRAINING, AcqRel);' '' \
    $hooks --lib an_event_that_holds_too_much
guard '5 the reaper buries' registry/src/reaper.rs $'self.bury(&mut unlocked);\n        idle' 'idle' \
    $registry --test prompt_release the_reaper_unpins
guard '5 the reaper retires' registry/src/reaper.rs 'self.tidy(&mut unlocked);' '' \
    $registry --test prompt_release the_reaper_unpins
guard '6 what is held is not buried' registry/src/cache/graveyard.rs 'if cache.counts.is_held(id) {' 'if false {' \
    $registry --test lifetimes a_region_in_use
guard '8 the byte budget' registry/src/cache.rs '!geometry.budget.take(bytes) {' '!geometry.budget.take(0) {' \
    $registry --test lifetimes the_byte_budget
guard '8 limits of the groups above count' registry/src/machine.rs 'inside.ancestors().map(' 'std::iter::once(inside).map(' \
    $registry --lib of_nested_groups
guard '8 graves lend no more than they leave' registry/src/cache/graveyard.rs 'bytes: bytes.min(self.bytes)' 'bytes' \
    $registry --test lifetimes the_device_never
guard '5 nobody waits for what comes in the place of another' registry/src/miss.rs 'regions::set_gone(inner.cache.slot(grave.slot));' 'let _ = grave;' \
    $registry --test lifetimes a_flush_does_not_wait
guard '8 room that comes is no refusal' registry/src/registry.rs 'locked.make_room() || locked.makes_room()' '!locked.make_room() && locked.makes_room()' \
    $registry --test answers room_that_another
guard '8 eviction spares what is held' registry/src/cache/graveyard.rs 'cache.counts.is_held(id) || regions::take_touched' 'regions::take_touched' \
    $registry --test lifetimes the_byte_budget

guard '5 the reaper looks in time' registry/src/reaper.rs 'Duration::from_millis(25)' 'Duration::from_millis(150)' \
    $registry --test prompt_release the_reaper_unpins
guard '2 the loader announces removals' hooks/src/loader.rs 'if REMOVING.swap(removing, AcqRel) || removing ||' 'if' \
    $coverage --test table dlclose
guard '2 shared pages are declared' hooks/src/files.rs 'SHARED.store(true, SeqCst);' '' \
    $coverage --test table punch-hole-number
guard '2 mappings that are not private are noted' hooks/src/plain.rs 'note_doubtful(at as usize, len);' '' \
    $registry --test shared_memory shared_memory_is_kept_only
guard '2 mappings from before are noted' registry/src/trust/mod.rs 'mapping::note_doubtful();' '' \
    $registry --test shared_memory however_it_was_mapped
guard '2 shared memory is not kept' registry/src/trust/mod.rs '(!self.shared_is_trusted).then_some(Uncached::Shared)' 'None' \
    $coverage --test table punch-hole-elsewhere
guard '2 raw callers are looked for' registry/src/trust/mod.rs 'if !scan.found.is_empty() &&' 'if scan.found.len() > 9 &&' \
    $coverage --test table rustix
guard '2 our own C library is told from others' registry/src/trust/raw_callers.rs $'if object.0.contains(&address) {\n                if path' $'if false {\n                if path' \
    $registry --lib one_c_library
guard '2 hits wait for what has been read' hooks/src/userfaultfd.rs 'settled::suspend();' '' \
    $coverage --test watched
guard '2 a second copy replaces the jump in the padding' hooks/src/patch/x86_64.rs 'if let Some(jump) = unsafe { jump_in_padding(function, at, &code, at - entry) } {' 'if let Some(jump) = None {' \
    $coverage --test two_copies munmap
guard '2 system calls of our own are marked' hooks/src/passthrough.rs $'        "syscall",\n        "nop dword ptr [rax + {mark}]",' $'        "nop dword ptr [rax + {mark}]",\n        "syscall",' \
    $registry --test every_change_is_noticed
guard 'fork: a child has its own' registry/src/of_process.rs $'&& slot.generation == generation' '&& slot.generation <= generation' \
    $registry --test scenarios_process a_child_forked_during
guard '10 children without handlers are noticed' hooks/src/fork.rs 'WIPED.store(wiped, Release);' 'WIPED.store(false, Release);' \
    $hooks --test forks a_child_without_handlers
guard '2 rings of the program are looked for' registry/src/trust/raw_callers.rs 'self.look_for_rings();' '' \
    $registry --test changes_by_a_ring
guard '2 only what is watched is given back' registry/src/registry.rs 'if grave.watched {' 'if grave.watched || true {' \
    $registry --test changes_by_a_ring
guard '2 nothing is patched without membarrier' hooks/src/install.rs 'map_trampolines().and_then(|()| patch::serialise())' 'map_trampolines()' \
    $hooks --test flips without_membarrier
guard '10 forks are noticed without hooks' registry/src/builder.rs 'pinyard_hooks::notice_forks();' '' \
    $coverage --test table child-gets
guard '10 a child keeps a book of its own' registry/src/budget.rs 'while book.forks != forks {' 'while book.forks > forks {' \
    $registry --test scenarios_process a_child_has_all
guard '10 a child asks for nothing under the lock' registry/src/registry.rs $'if self.inner.is_forked() {\n            return 0;' $'if false {\n            return 0;' \
    $registry --test scenarios_process a_child_forked_while
guard 'check: a lookup compares the epoch' registry/src/regions.rs $'slot.epoch() != epoch || !serves(slot, start, len, access) {\n            return None;\n        }\n        let key' $'!serves(slot, start, len, access) {\n            let _ = epoch;\n            return None;\n        }\n        let key' \
    $registry --test lifetimes more_wide_events
guard 'check: a hit compares the length' registry/src/regions.rs 'offset < size && len.wrapping_sub(1) < size - offset &&' '{ let _ = len; } offset < size &&' \
    $registry --test scenarios_libfabric hit_containment
guard 'check: a hit compares the access' registry/src/regions.rs 'size - offset && !lacks' 'size - offset && (true || !lacks)' \
    $registry --test scenarios_rcache protection_is_widened_where
guard 'check: what is coming is marked only where it overlaps' hooks/src/map/slot.rs 'start <= last && first < end' 'start <= last && first <= end' \
    $hooks --lib a_registration_under_way
guard 'check: a mark spares what has its place now' registry/src/cache/draining.rs $'&& let Some(reason) = self.doom(id)\n            {' '{ let reason = self.doom(id).unwrap_or(Reason::Invalidated);' \
    $registry --test scenarios_libfabric late_delivery
guard 'check: a wide event spares what is newer' registry/src/cache/draining.rs 'self.writer.wide.splice(from..to, left);' 'drop(left);' \
    $registry --lib overlapping_wide_events
guard 'check: who waits for an invalidate waits for burials' registry/src/cache/draining.rs '.chain(&writer.in_use).chain(&writer.burying);' '.chain(&writer.in_use);' \
    $registry --test answers waits_for_what
guard 'ordering: a drain is applied before it is finished' registry/src/cache/draining.rs $'            limit = limit.saturating_sub(1);\n        }\n        self.cache.map.finish_drain();' $'            limit = limit.saturating_sub(1);\n            self.cache.map.finish_drain();\n        }\n        self.cache.map.finish_drain();' \
    $registry --test lifetimes more_wide_events
guard "host pool: a deferred block wakes the pool's thread" allocator/src/shared.rs \
    $'block_bytes);\n        core.sleep.wake(core.worker.get());' 'block_bytes);' \
    pinyard-allocator --test shortage deferred_blocks_come_back
guard "host pool: the pool's thread asks no fence of the program's" allocator/src/grow.rs \
    'if self.is_worker() {' 'if false {' \
    pinyard-allocator --test host_coming a_fence_of_the_programs_threads
guard 'device pool: a borrower waits for the lenders' allocator/src/device/hub.rs \
    'self.driver.stream_wait_event(in_use.handle(), begun, token)' '{ let _ = (begun, &in_use); Ok::<(), DriverError>(()) }' \
    pinyard-allocator --test device_footprint a_borrower_waits_on_the_device
guard 'device pool: what others use is waited for by the hub' allocator/src/device/hub.rs \
    'user.timeline.hold(own, value, &*self.driver, token)' '{ let _ = (user, own); Ok::<(), DriverError>(()) }' \
    pinyard-allocator --test device_footprint a_borrower_waits_on_the_device_for_all_users
guard 'device pool: streams that use a dropped block are waited for' allocator/src/device/reclaim.rs \
    $'            .streams\n            .iter()' $'            .streams[..0]\n            .iter()' \
    pinyard-allocator --test device_conformance a_side_streams_use
guard 'device pool: a stream in use cannot be retired' allocator/src/retire.rs \
    'let alone = self.lock.write();' 'let other = Box::leak(Box::new(RwLock::new())); let alone = other.write();' \
    pinyard-allocator --test device_retire meets_the_end
guard 'worker: a thread goes on after a panic' hooks/worker/src/lib.rs \
    'while let Err(panicked) = caught(|| work(&kept)) {' 'if let Err(panicked) = caught(|| work(&kept)) {' \
    pinyard-worker --lib a_thread_goes_on
guard 'worker: a payload is forgotten' hooks/worker/src/lib.rs 'std::mem::forget(payload);' 'drop(payload);' \
    pinyard-worker --lib a_panic_is_told
guard 'worker: a panic of the log is caught' hooks/worker/src/lib.rs \
    'let _ = $crate::caught(|| tracing::$level!($($arguments)*));' 'tracing::$level!($($arguments)*);' \
    pinyard-allocator --test panicking_log
guard 'device pool: a registrar that panics has failed' allocator/src/device/alloc.rs \
    'by_program("Registrar::deregister", segment, || registrar.deregister(segment, key, token))' \
    'registrar.deregister(segment, key, token)' \
    pinyard-allocator --test panics a_registrar
guard 'pools: a panic of a fence is caught' allocator/src/fence.rs \
    'guarded("a fence", || poll.passed())' 'Some(poll.passed())' \
    pinyard-allocator --test panics a_host_pool_outlives_fences
guard 'pools: a panic of the drop of a fence is caught' allocator/src/fence.rs \
    'guarded("the drop of a fence", || drop(poll));' 'drop(poll);' \
    pinyard-allocator --test panics a_host_pool_outlives_fences
guard "libfabric's helper: a task that panics keeps no other from its turn" libfabric/src/helper.rs \
    'let _ = caught(|| task(complete));' 'task(complete);' \
    pinyard-libfabric --lib the_helper_outlives
export MPICC=${MPICC:-/usr/bin/mpicc.openmpi}
guard 'MPI: neither leg of an exchange waits for the other' collectives/src/immediate/steps.rs \
    'if second.is_pending() {' 'if second.is_pending() && first.is_ready() {' \
    pinyard-mpi --lib of_both_neither_waits
guard 'MPI: a message that blocks comes behind those of its key alone' collectives/src/immediate/engine.rs \
    'operation.key == key' 'true' \
    pinyard-mpi --lib one_that_blocks_comes_behind
guard 'MPI: the rank that ends its communicator is named' collectives/src/called.rs \
    '_ if ends(self) =>' '_ if false =>' \
    pinyard-mpi --lib the_first_that_is_not_as_rank_0
guard "a rank's last words are read before it ends all" collectives/src/run.rs \
    'ioctl_fionread(&output).unwrap_or(0) == 0' 'true' \
    pinyard-mpi --lib the_end_waits_until_the_last_words_are_read
# Programs with more rights than their caller, which only root makes.
[ "$(id -u)" -ne 0 ] || guard 'AT_SECURE: relative paths' registry/src/backend/library.rs 'is_relative(&name) && pinyard_hooks::is_privileged()' 'false' \
    $registry --test privileged
secure=mpi-tests/c/secure.sh
scripted 'AT_SECURE: PINYARD_HOOKS' registry/src/trust/mechanism.rs 'if pinyard_hooks::is_privileged() {' 'if false {' \
    'PINYARD_HOOKS, secure: heeded' $secure library
scripted 'AT_SECURE: PINYARD_TRACE' trace/src/settings.rs 'if crate::hooks::is_privileged() {' 'if false {' \
    'PINYARD_TRACE, secure: heeded' $secure library
scripted 'AT_SECURE: PINYARD_POOL_LIMIT' allocator/src/config/mod.rs 'if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {' 'if false {' \
    'PINYARD_POOL_LIMIT, secure: heeded' $secure library
scripted 'AT_SECURE: PINYARD_DRIVER' driver/src/chosen.rs 'if pinyard_hooks::is_privileged() {' 'if false {' \
    'PINYARD_DRIVER, secure: heeded' $secure library
guard 'preload: versions in providers names' preload/src/providers.rs 'ends_with(SUFFIX.as_bytes())' 'eq(b"libverbs-fi.so")' \
    pinyard-preload --lib a_provider_is_known
scripted 'preload: left alone, nothing is patched' preload/src/libfabric.rs \
    'return say(Level::Error, format_args!("{}: left alone' 'say(Level::Error, format_args!("{}: left alone' \
    ' the same without UCX, left alone: the same entries' mpi-tests/preload/run.sh patchers
scripted 'AT_SECURE: PINYARD_LOG' preload/src/settings.rs 'if pinyard_hooks::is_privileged() { None } else' 'if false { None } else' \
    'PINYARD_LOG, secure-preload: heeded' $secure preload
scripted 'AT_SECURE: PINYARD_MPI' collectives/src/variables.rs 'if pinyard_hooks::is_privileged() { None } else' 'if false { None } else' \
    'PINYARD_MPI_PATH, gpu-ranks: heeded' $secure mpi
refused '7 no driver call under the device pool lock' allocator/src/device/reclaim.rs '        drop(central);
        // A stream' '        // A stream' pinyard-allocator
refused "7 no driver call under the lock of a stream's events" allocator/src/device/events.rs '        drop(book);
        // No event' '        // No event' pinyard-allocator
refused '7 a backend called under the lock' registry/src/registry.rs 'locked.look_again();' \
    'let mut graves = locked.graves(); self.deregister(&mut graves, unlocked); drop(locked.buried(graves));' $registry

# The models, which must find what the tests above meet only by luck.
profile=(--release)
export RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 CARGO_TARGET_DIR=$CARGO_TARGET_DIR/loom
guard 'model: a reader looks at the state again' registry/src/regions.rs \
    'if slot.state_again() != state {' 'if false {' \
    $registry --lib models::get_against_a_mark
guard 'model: a reader fences its count' registry/src/regions.rs \
    $'if OWN {\n            light_fence()\n        } else {\n            store_load_barrier()\n        }' '' \
    $registry --lib models::get_
guard 'model: a retirer fences the counts' registry/src/cache/graveyard.rs \
    '!writer.dead.is_empty() && order_all_counts()' '!writer.dead.is_empty()' \
    $registry --lib models::get_
guard 'model: a retirer looks at the counts' registry/src/cache/graveyard.rs 'if cache.counts.is_held(id) {' 'if false {' \
    $registry --lib models::get_against_a_mark
guard 'model: going live fails on a mark' hooks/src/map/slot.rs \
    'self.state.compare_exchange(coming, coming & !PHASE | LIVE, AcqRel, Acquire).is_ok()' 'self.state.store(coming & !PHASE | LIVE, Release); true' \
    $registry --lib models::register_against_change
guard 'model: in the directory before off the list' registry/src/cache.rs \
    'self.writer.counters.registrations += 1;' 'self.land(&ticket); self.writer.counters.registrations += 1;' \
    $registry --lib models::register_against_change
guard 'model: a bracketed change' hooks/src/monitor.rs 'self.0.load(SeqCst) != ticket.0' '{ let _ = ticket.0; false }' \
    $registry --lib models::register_against_change
guard 'model: a widened event covers what it was' hooks/src/slots.rs 'Some((event.gap(other), index, pending, event.union(other)?))' 'Some((event.gap(other), index, pending, event.union(other).map(|_| event)?))' \
    $hooks --test loom_inbox widen
guard 'model: a push sets its summary bit' hooks/src/slots.rs 'self.summary.fetch_or(1 << (index / GROUP), Release);' '' \
    $hooks --test loom_inbox two_events_two_slots

guard 'model: whoever retires a stream waits for calls for it' allocator/src/retire.rs \
    'let alone = self.lock.write();' 'let other = Box::leak(Box::new(RwLock::new())); let alone = other.write();' \
    pinyard-allocator --lib models::retire::a_stream_ends
guard 'model: a stream is asked whether it is retired with the lock held' allocator/src/retire.rs \
    $'let shared = self.lock.read();\n        match self.last_mark() {' \
    $'let last = self.last_mark();\n        let shared = self.lock.read();\n        match last {' \
    pinyard-allocator --lib models::retire::a_stream_ends
guard 'model: a device pool is looked at after the sleep is announced' allocator/src/sleep.rs \
    $'self.announced.store(true, Relaxed);\n        // Pairs with the fence in `wake`: we find what was brought, or it finds this.\n        fence(SeqCst);\n        let found = look();' \
    $'let found = look();\n        self.announced.store(true, Relaxed);\n        fence(SeqCst);' \
    pinyard-allocator --lib models::nobody_drops

# Orderings and the order of steps (docs/src/ordering.md).
guard 'ordering: who is inside sees what was done inside' hooks/src/holder.rs 'self.word.store(FREE, Release);' 'self.word.store(FREE, Relaxed);' \
    $hooks --test loom_holder
guard 'ordering: who goes inside acquires' hooks/src/holder.rs 'match self.word.compare_exchange(FREE, us, Acquire, Relaxed) {' 'match self.word.compare_exchange(FREE, us, Relaxed, Relaxed) {' \
    $hooks --test loom_holder
guard 'ordering: whoever takes a mark sees it' hooks/src/map/mod.rs 'word.fetch_or(1 << (id % 64), Release);' 'word.fetch_or(1 << (id % 64), Relaxed);' \
    $registry --lib models::drain_against_a_mark
guard 'ordering: whoever sees it landed sees it listed' hooks/src/map/mod.rs 'self.coming.mask.store(self.coming.mask.load(Relaxed) & !(1 << at), Release);' 'self.coming.mask.store(self.coming.mask.load(Relaxed) & !(1 << at), Relaxed);' \
    $registry --lib models::register_against_change
guard 'ordering: a hook reads the set of what is coming with Acquire' hooks/src/map/mod.rs 'let mask = self.coming.mask.load(Acquire);' 'let mask = self.coming.mask.load(Relaxed);' \
    $registry --lib models::register_against_change
guard 'ordering: what is coming before what is listed' hooks/src/map/mod.rs $'let mask = self.coming.mask.load(Acquire);\n        if mask != 0 {\n            self.mark_coming(mask, start, last);\n        }' $'self.mark_listed(start, last);\n        let mask = self.coming.mask.load(Acquire);\n        if mask != 0 {\n            self.mark_coming(mask, start, last);\n        }\n        if true { return; }' \
    $registry --lib models::register_against_change
guard 'ordering: whoever counts a registration sees it coming' hooks/src/monitor.rs 'self.0.fetch_add(1, SeqCst);' 'self.0.fetch_add(1, core::sync::atomic::Ordering::Relaxed);' \
    $registry --lib models::register_against_change
guard 'ordering: a ticket is taken with Acquire' hooks/src/monitor.rs 'Ticket(self.0.load(Acquire))' 'Ticket(self.0.load(core::sync::atomic::Ordering::Relaxed))' \
    $registry --lib models::register_against_change
guard 'check: a walk follows the bounds of what is listed' hooks/src/map/slot.rs '(stands && start <= at && at < end)' '{ let _ = stands; } (start <= at && at < end)' \
    $registry --lib models::a_walk_does_not_follow
guard 'ordering: the flag after the event' hooks/src/map/mod.rs $'later.push(event);\n                // AcqRel: pairs with `begin_drain`, which then finds the event.\n                self.news.fetch_or(PENDING, AcqRel);' $'self.news.fetch_or(PENDING, AcqRel);\n                later.push(event);' \
    $registry --lib models::drain_against_a_wide_event
guard 'ordering: a state is read with Acquire' hooks/src/map/slot.rs 'State(self.state.load(Acquire))' 'State(self.state.load(Relaxed))' \
    $registry --lib models::a_
guard 'ordering: a drain ends where it began' hooks/src/inbox.rs 'self.news.drained.store(mark.0, Release);' 'let _ = mark.0; self.news.drained.store(self.news.pushed.load(Relaxed), Release);' \
    $hooks --test loom_inbox
guard 'ordering: a word before its summary bit' hooks/src/slots.rs 'self.summary.fetch_or(1 << (index / GROUP), Release);' 'self.summary.fetch_or(1 << (index / GROUP), Relaxed);' \
    $hooks --test loom_inbox
guard 'ordering: whoever takes a dropped block sees its link' allocator/src/inbox.rs \
    'item.into_ptr(), Release, Relaxed)' 'item.into_ptr(), Relaxed, Relaxed)' \
    pinyard-allocator --lib models::what_is_dropped
guard 'ordering: what was done under a latch is seen by the next holder' allocator/src/latch.rs \
    'self.latch.held.store(false, Release);' 'self.latch.held.store(false, Relaxed);' \
    pinyard-allocator --lib models::a_latch
guard 'ordering: a drop before the look at the worker' allocator/src/sleep.rs $'// Pairs with the fence in `announced`.\n        fence(SeqCst);' '' \
    pinyard-allocator --lib models::nobody_drops
guard 'ordering: the announcement before the look' allocator/src/sleep.rs $'or it finds this.\n        fence(SeqCst);' 'or it finds this.' \
    pinyard-allocator --lib models::nobody_drops

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
