/* The letters that change files, objects, processes, threads. */
#ifndef GENERATOR_OTHERS_H
#define GENERATOR_OTHERS_H
#include "operations.h"

#define PUNCH (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)

static void in_child(pid_t child, const char *what)
{
	int status = 0;
	if (waitpid(child, &status, 0) != child || status) {
		fprintf(stderr, "the child's status: %#x\n", status);
		errno = 0;
		broken(what);
	}
}

/* ---- Files ------------------------------------------------------------------------------------- */
static void truncate_by_opening(int file)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", file);
	close(open(path, O_RDWR | O_TRUNC | O_CLOEXEC));
}

static void op_truncate_file(struct slot *slot, unsigned variant)
{
	int file = slot->file;
	off_t length = (off_t)slot->length;
	pid_t child;
	struct stat all;
	if (file < 0 || (slot->kind != SHARED && slot->kind != OF_FILE) || fstat(file, &all))
		return;
	switch (variant) {
	case 0: (void)!ftruncate(file, 0); break;
	case 1: syscall(SYS_ftruncate, file, 0); break;
	case 2: in_object(SYS_ftruncate, file, 0, 0, 0, 0); break;
	case 3: truncate_by_opening(file); break;
	case 4:
		child = fork();
		if (child == 0)
			_exit(ftruncate(file, 0) ? 1 : 0);
		if (child > 0)
			in_child(child, "a child that truncates");
		break;
	case 5: (void)!fallocate(file, PUNCH, 0, length); break;
	case 6: in_object(SYS_fallocate, file, PUNCH, 0, length, 0); break;
	case 7: madvise(slot->at, slot->length, MADV_REMOVE); break;
	case 8: (void)!remap_file_pages(slot->at, PAGE, 0, 1, 0); slot->seams = 1; break;
	}
	/* Long again, by a call that no hook has. */
	if (pwrite(file, "", 1, all.st_size - 1) != 1)
		impossible("pwrite");
}

/* A file that has nothing to do with any slot, again and again. */
static void op_other_file(struct slot *slot, unsigned variant)
{
	int file = file_of(variant == 2, PAGE);
	(void)slot;
	for (int at = 0; at < 16; at++) {
		if (variant == 0)
			(void)!ftruncate(file, at * 100);
		else if (variant == 1)
			truncate_by_opening(file);
		else
			(void)!fallocate(file, PUNCH, 0, PAGE);
	}
	close(file);
}

/* ---- Objects ----------------------------------------------------------------------------------- */
static void op_load(struct slot *slot, unsigned variant)
{
	(void)slot;
	load_object(variant);
}

static void op_unload(struct slot *slot, unsigned variant)
{
	(void)slot;
	unload_object(variant);
}

/* ---- Processes --------------------------------------------------------------------------------- */
/* In the child: its parent's registrations are refused; it may have its own. */
static int get_in_child(const struct slot *slot, int own)
{
	pny_registry_config config = {.size = sizeof config, .backend = PNY_BACKEND_IO_URING};
	pny_registry other;
	struct pny_lease got = {0};
	if (!own)
		return pny_get(registry, slot->at, slot->length, PNY_LOCAL_READ, &got) == PNY_ERR_FORKED ? 0 : 1;
	/* The loader may have been another thread's when the process was forked: its end is no failure. */
	signal(SIGALRM, SIG_DFL);
	alarm(1);
	if (pny_registry_create(&config, &other) != PNY_OK)
		return 2;
	if (pny_get(other, slot->at, slot->length, PNY_LOCAL_WRITE, &got) != PNY_OK || pny_put(&got) != PNY_OK)
		return 3;
	return pny_registry_destroy(other) == PNY_OK ? 0 : 4;
}

static void op_child(struct slot *slot, unsigned variant)
{
	int status;
	if (slot->kind != PRIVATE || (variant >= 3 && is_plain()))
		return;
	pid_t child = variant == 2 ? vfork() : fork();
	if (child == 0 && variant == 2)
		_exit(0);
	if (child == 0) {
		if (variant >= 3)
			_exit(get_in_child(slot, variant == 4));
		memset(slot->at, 0, slot->length);
		_exit(variant == 0 ? munmap(slot->at, slot->length) : madvise(slot->at, slot->length, MADV_DONTNEED));
	}
	if (child < 0)
		return; /* for each huge page that is pinned the kernel takes one more */
	if (variant == 1 || variant == 4)
		judge(slot->at, slot->length, PAGE, PRIVATE, 0);
	if (variant == 4 && waitpid(child, &status, 0) == child) {
		if (status && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)) {
			fprintf(stderr, "the child's status: %#x\n", status);
			broken("a child with a registry of its own");
		}
		return;
	}
	in_child(child, "a child");
}

/* ---- Threads and handlers ---------------------------------------------------------------------- */
static struct {
	pthread_mutex_t lock;
	struct slot *slot;
	unsigned variant;
	atomic_int done;
} changing = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* With async-signal-safe calls alone. */
static void change_at_once(struct slot *slot, unsigned variant)
{
	unsigned char *at = slot->at;
	if (variant == 0)
		madvise(at, slot->length, MADV_DONTNEED);
	else if (variant == 1 && munmap(at, slot->length))
		broken("munmap");
	if (variant == 0)
		return;
	void *mapped = mmap(at, slot->length, RW, ANONYMOUS | (variant == 1 ? MAP_FIXED_NOREPLACE : MAP_FIXED), -1, 0);
	if (mapped != at && mapped != MAP_FAILED)
		munmap(mapped, slot->length);
	slot->kind = mapped == at ? PRIVATE : NOTHING;
	slot->seams = 0;
}

static void handle(int signal)
{
	int before = errno;
	(void)signal;
	change_at_once(changing.slot, changing.variant);
	atomic_store(&changing.done, 1);
	errno = before;
}

static void answer_signals(void)
{
	struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
	sigaction(SIGUSR1, &action, NULL);
}

/* A handler on another thread, whatever that is doing, changes the slot. */
static void op_by_handler(struct slot *slot, unsigned variant)
{
	static atomic_uint next;
	if (slot->kind != PRIVATE)
		return;
	pthread_mutex_lock(&changing.lock);
	changing.slot = slot;
	changing.variant = variant;
	atomic_store(&changing.done, 0);
	pthread_kill(threads[atomic_fetch_add(&next, 1) % THREADS], SIGUSR1);
	while (!atomic_load(&changing.done))
		sched_yield();
	pthread_mutex_unlock(&changing.lock);
}

static void run_thread(void *(*body)(void *), void *argument, size_t stack)
{
	pthread_attr_t attributes;
	pthread_t thread;
	pthread_attr_init(&attributes);
	if (pthread_attr_setstacksize(&attributes, stack) || pthread_create(&thread, &attributes, body, argument))
		impossible("pthread_create");
	pthread_attr_destroy(&attributes);
	pthread_join(thread, NULL);
}

struct change {
	struct slot *slot;
	unsigned variant;
};
static void *change_on_thread(void *change)
{
	change_at_once(((struct change *)change)->slot, ((struct change *)change)->variant);
	return NULL;
}
static void op_by_thread(struct slot *slot, unsigned variant)
{
	struct change change = {slot, variant};
	if (slot->kind == PRIVATE)
		run_thread(change_on_thread, &change, 256 << 10);
}

/* The kernel has the pages of a stack that glibc keeps, or has none that it does not keep. */
static void *stack_on_thread(void *unused)
{
	unsigned char memory[8 * PAGE];
	judge((void *)(((uintptr_t)memory + PAGE - 1) & -PAGE), 7 * PAGE, PAGE, PRIVATE, 0);
	return unused;
}
static void op_send_stack(struct slot *slot, unsigned variant)
{
	static const size_t stacks[] = {128 << 10, 1 << 20, 64 << 20};
	(void)slot;
	run_thread(stack_on_thread, NULL, stacks[variant]);
	run_thread(stack_on_thread, NULL, stacks[variant]);
}

struct cancelled {
	struct slot *slot;
	unsigned variant;
	atomic_int begun, cancelled;
};
static void *get_until_cancelled(void *argument)
{
	struct cancelled *shared = argument;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	atomic_store(&shared->begun, 1);
	while (shared->variant == 0 && !atomic_load(&shared->cancelled))
		sched_yield();
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	for (;;) {
		struct pny_lease got = {0};
		if (lease(shared->slot->at, shared->slot->length, PNY_LOCAL_READ, &got) == PNY_OK)
			give_back(&got);
		pthread_testcancel();
	}
	return NULL;
}
/* A thread is cancelled before its get, or at any time. */
static void op_cancel(struct slot *slot, unsigned variant)
{
	struct cancelled shared = {.slot = slot, .variant = variant};
	pthread_t thread;
	void *end;
	if (slot->kind != PRIVATE)
		return;
	if (pthread_create(&thread, NULL, get_until_cancelled, &shared))
		impossible("pthread_create");
	while (!atomic_load(&shared.begun))
		sched_yield();
	pthread_cancel(thread);
	atomic_store(&shared.cancelled, 1);
	pthread_join(thread, &end);
	if (end != PTHREAD_CANCELED)
		broken("a cancelled thread");
}

/* ---- While the registry is made ---------------------------------------------------------------- */
static atomic_int idle;
static pthread_t busy_threads[2];

static void *allocate_busily(void *unused)
{
	while (!atomic_load(&idle)) {
		unsigned char *blocks[16];
		for (size_t at = 0; at < 16; at++)
			blocks[at] = memset(malloc(5000 + 3000 * at), (int)at, 5000 + 3000 * at);
		for (size_t at = 16; at-- > 0; free(blocks[at]))
			if (blocks[at][4999 + 3000 * at] != at)
				broken("malloc's memory");
	}
	return unused;
}
static void *load_busily(void *unused)
{
	while (!atomic_load(&idle)) {
		load_object(3);
		unload_object(3);
	}
	return unused;
}
static void be_busy(unsigned busy)
{
	if (!busy)
		return;
	mallopt(M_ARENA_MAX, 1);
	mallopt(M_TRIM_THRESHOLD, 0);
	mallopt(M_TOP_PAD, 0);
	if (pthread_create(&busy_threads[0], NULL, busy & 1 ? allocate_busily : load_busily, NULL) ||
	    pthread_create(&busy_threads[1], NULL, busy & 2 ? load_busily : allocate_busily, NULL))
		impossible("pthread_create");
	usleep(200);
}
static void end_busy(void)
{
	atomic_store(&idle, 1);
	for (size_t at = 0; at < 2; at++)
		if (busy_threads[at])
			pthread_join(busy_threads[at], NULL);
}
#endif
