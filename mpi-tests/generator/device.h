/*
 * The device of the generated programs: a process of its own that has the ring in whose table the
 * registrations stand. It moves one byte at a time through a registration. The pages of a fixed buffer
 * stay pinned (io_uring_register(2)): a registration that is stale shows the bytes of pages that are no
 * longer in memory.
 *
 * With GENERATOR_PLAIN in the environment nothing of pinyard's is called: each `pny_get` is a
 * registration that is made then, and each `pny_put` takes it back. A program that fails like this as
 * well does not show a defect of the cache.
 */
#ifndef GENERATOR_DEVICE_H
#define GENERATOR_DEVICE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <pinyard.h>

/* How a program ends; a signal is a failure as well. */
enum { WELL = 0, STALE = 10, REFUSED = 11, BROKEN = 12, NOT_POSSIBLE = 77 };

#define PLAIN_BUFFERS 64

static pny_registry registry;
static int to_device = -1;
static int plain_ring = -1;

__attribute__((noreturn)) static void impossible(const char *call)
{
	fprintf(stderr, "not possible here: %s: %s\n", call, strerror(errno));
	_exit(NOT_POSSIBLE);
}

/* ---- In the device's process ----------------------------------------------------------------- */
struct request {
	uint64_t buffer, address;
	/* -1: what does the device see? Else the byte that it writes. */
	int64_t byte;
};

struct rings {
	_Atomic unsigned *tail, *head;
	unsigned *index;
	struct io_uring_sqe *entries;
	struct io_uring_cqe *done;
	unsigned mask, done_mask;
};

/* Descriptor 3 is the ring, 4 the other end of `to_device`. */
enum { RING = 3, PROGRAM = 4 };

static int map_rings(struct rings *rings)
{
	struct io_uring_params made = {0};
	/* Another ring of as many entries says where things are. */
	int other = (int)syscall(SYS_io_uring_setup, 8, &made);
	size_t bytes = made.cq_off.cqes + made.cq_entries * sizeof(struct io_uring_cqe);
	unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, RING, IORING_OFF_SQ_RING);
	void *entries =
		mmap(NULL, made.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED, RING, IORING_OFF_SQES);
	if (other < 0 || at == MAP_FAILED || entries == MAP_FAILED)
		return -1;
	close(other);
	*rings = (struct rings){(void *)(at + made.sq_off.tail), (void *)(at + made.cq_off.head), (void *)(at + made.sq_off.array),
				entries, (void *)(at + made.cq_off.cqes), made.sq_entries - 1, made.cq_entries - 1};
	return 0;
}

/* The number of bytes that went through the registration between `fd` and its pages, or -errno. */
static int transfer(struct rings *rings, const struct request *request, int fd)
{
	unsigned at = atomic_load(rings->tail), end = atomic_load(rings->head);
	struct io_uring_sqe *entry = &rings->entries[at & rings->mask];
	memset(entry, 0, sizeof *entry);
	entry->opcode = request->byte < 0 ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED;
	entry->fd = fd;
	entry->addr = request->address;
	entry->len = 1;
	entry->buf_index = (uint16_t)request->buffer;
	rings->index[at & rings->mask] = at & rings->mask;
	atomic_store(rings->tail, at + 1);
	while (syscall(SYS_io_uring_enter, RING, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0 && errno == EINTR)
		;
	int answer = rings->done[end & rings->done_mask].res;
	atomic_store(rings->head, end + 1);
	return answer;
}

static int device(void)
{
	struct rings rings;
	struct request request;
	int ends[2];
	if (map_rings(&rings) || pipe(ends))
		return NOT_POSSIBLE;
	while (read(PROGRAM, &request, sizeof request) == sizeof request) {
		unsigned char byte = (unsigned char)request.byte;
		if (request.byte >= 0 && write(ends[1], &byte, 1) != 1)
			return NOT_POSSIBLE;
		int answer = transfer(&rings, &request, ends[request.byte < 0]);
		if (answer == 1)
			answer = request.byte < 0 && read(ends[0], &byte, 1) != 1 ? -EIO : byte;
		if (write(PROGRAM, &answer, sizeof answer) != sizeof answer)
			break;
	}
	return 0;
}

/* ---- In the program -------------------------------------------------------------------------- */
/* The descriptor of the registry's ring: the only one yet. */
static int descriptor_of_ring(void)
{
	char target[64];
	int found = -1;
	DIR *all = opendir("/proc/self/fd");
	if (!all)
		return -1;
	for (struct dirent *entry; found < 0 && (entry = readdir(all));) {
		ssize_t length = readlinkat(dirfd(all), entry->d_name, target, sizeof target - 1);
		target[length < 0 ? 0 : length] = 0;
		if (strstr(target, "io_uring"))
			found = atoi(entry->d_name);
	}
	closedir(all);
	return found;
}

static void start_device(void)
{
	int ends[2], ring = descriptor_of_ring();
	if (ring < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		impossible("the ring's descriptor");
	pid_t child = fork();
	if (child == 0) {
		int far = fcntl(ends[1], F_DUPFD, 64), ring_far = fcntl(ring, F_DUPFD, 64);
		dup2(ring_far, RING);
		dup2(far, PROGRAM);
		syscall(SYS_close_range, PROGRAM + 1, ~0U, 0);
		execl("/proc/self/exe", "generator", "device", (char *)NULL);
		_exit(NOT_POSSIBLE);
	}
	if (child < 0)
		impossible("fork");
	close(ends[1]);
	to_device = ends[0];
}

static int ask_device(uint64_t buffer, const unsigned char *address, int byte)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	struct request request = {buffer, (uint64_t)(uintptr_t)address, byte};
	int answer = -EPIPE;
	pthread_mutex_lock(&lock);
	if (write(to_device, &request, sizeof request) != sizeof request || read(to_device, &answer, sizeof answer) != sizeof answer)
		impossible("the device");
	pthread_mutex_unlock(&lock);
	return answer;
}

/* ---- Registrations, of the cache or plain ---------------------------------------------------- */
static int is_plain(void)
{
	return plain_ring >= 0;
}

static pny_status make_registry(const pny_registry_config *config)
{
	if (getenv("GENERATOR_PLAIN")) {
		struct iovec none[PLAIN_BUFFERS] = {0};
		struct io_uring_params made = {0};
		plain_ring = (int)syscall(SYS_io_uring_setup, 8, &made);
		if (plain_ring < 0 || syscall(SYS_io_uring_register, plain_ring, IORING_REGISTER_BUFFERS, none, PLAIN_BUFFERS))
			impossible("io_uring");
		return PNY_OK;
	}
	return pny_registry_create(config, &registry);
}

static int update_plain(unsigned at, void *address, size_t length)
{
	struct iovec buffer = {address, length};
	struct io_uring_rsrc_update2 update = {.offset = at, .data = (uint64_t)(uintptr_t)&buffer, .nr = 1};
	return syscall(SYS_io_uring_register, plain_ring, IORING_REGISTER_BUFFERS_UPDATE, &update, sizeof update) == 1 ? 0 : -1;
}

static atomic_uchar plain_used[PLAIN_BUFFERS];

static pny_status lease(void *address, size_t length, pny_access access, struct pny_lease *lease)
{
	if (!is_plain())
		return pny_get(registry, address, length, access, lease);
	for (unsigned at = 0; at < PLAIN_BUFFERS; at++) {
		if (atomic_exchange(&plain_used[at], 1))
			continue;
		if (update_plain(at, address, length)) {
			atomic_store(&plain_used[at], 0);
			return PNY_ERR_BACKEND;
		}
		lease->ticket = lease->key.lkey = at;
		lease->ticket++;
		return PNY_OK;
	}
	return PNY_ERR_LIMIT;
}

static void give_back(struct pny_lease *lease)
{
	if (!lease->ticket)
		return;
	if (is_plain()) {
		update_plain((unsigned)lease->ticket - 1, NULL, 0);
		atomic_store(&plain_used[lease->ticket - 1], 0);
		lease->ticket = 0;
	} else if (pny_put(lease) != PNY_OK) {
		fprintf(stderr, "REFUSED: pny_put: %s\n", pny_last_error());
		_exit(REFUSED);
	}
}
#endif
