/*
 * Every function of pinyard_mpi.h, of device and of host memory, in lengths on both sides
 * of every bound, and what must be refused. On the simulated device, or on the GPUs of the
 * node in turn; as many ranks as one likes. Ends with "completed", or MPI_Abort.
 *
 *   mpi_calls [big] [cuda]
 *                       big: broadcasts and sums of more than one block of 64 MiB as well
 *                       cuda: managed memory of GPUs, which the host may read and write
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <pinyard_mpi.h>

#define EXPECT(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "mpi_calls: rank %d, line %d: not so: %s: %s %s\n", rank, __LINE__, \
				#condition, pny_last_error(), pny_mpi_last_error()); \
			MPI_Abort(MPI_COMM_WORLD, 1); \
		} \
	} while (0)
#define DONE(call) EXPECT((call) == PNY_OK)
#define REFUSED(expected, words, call) \
	do { \
		EXPECT((call) == (expected)); \
		EXPECT(strstr(pny_mpi_last_error(), words) != NULL); \
	} while (0)

static int rank, size;
static pny_pool pool;
static pny_stream stream;
static pny_mpi_comm comm;

/* Memory of one kind: a device's, or the host's. */
static int on_device;
/* MPI is said to take device pointers: everything goes to it. */
static int straight;

/* Of libcuda.so.1, null on the simulated device. */
static int (*managed)(uint64_t *block, size_t bytes, unsigned flags);
static int (*allocate)(uint64_t *block, size_t bytes);
static int (*release)(uint64_t block);
static int (*retain)(void **context, int handle);
static int (*use)(void *context);
static int gpus;
static int device;
static void *cuda;

/* ISO C has no cast from an object's address to a function's. */
static void function(void *to, const char *name)
{
	void *found = dlsym(cuda, name);

	EXPECT(found != NULL);
	memcpy(to, &found, sizeof(found));
}

/* A GPU for each rank of the node, as far as there are so many. */
static void open_gpu(void)
{
	int (*start)(unsigned flags), (*count)(int *number);
	void *context;

	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	EXPECT(cuda != NULL);
	function(&start, "cuInit");
	function(&count, "cuDeviceGetCount");
	function(&retain, "cuDevicePrimaryCtxRetain");
	function(&use, "cuCtxSetCurrent");
	function(&managed, "cuMemAllocManaged");
	function(&allocate, "cuMemAlloc_v2");
	function(&release, "cuMemFree_v2");
	EXPECT(start(0) == 0 && count(&gpus) == 0 && gpus > 0);
	device = rank % gpus;
	EXPECT(retain(&context, device) == 0 && use(context) == 0);
}

static int *take_managed(size_t bytes)
{
	enum { GLOBAL = 1 };
	uint64_t address = 0;

	EXPECT(managed(&address, bytes, GLOBAL) == 0);
	return (int *) (uintptr_t) address;
}

static int *take(int count)
{
	void *block = NULL;
	const size_t bytes = (size_t) (count > 0 ? count : 1) * sizeof(int);

	if (on_device && cuda != NULL)
		block = take_managed(bytes);
	else if (on_device)
		DONE(pny_pool_alloc(pool, bytes, stream, &block));
	else
		block = malloc(bytes);
	EXPECT(block != NULL);
	memset(block, 0xee, bytes);
	return block;
}

static void give(int *block)
{
	if (on_device && cuda != NULL)
		EXPECT(release((uint64_t) (uintptr_t) block) == 0);
	else if (on_device)
		DONE(pny_pool_free(pool, block));
	else
		free(block);
}

static int value(int from, int at)
{
	return from * 1000003 + at * 7;
}

static void fill(int *block, int count, int from)
{
	for (int at = 0; at < count; at++)
		block[at] = value(from, at);
}

static void check(const int *block, int count, int from, int first)
{
	for (int at = 0; at < count; at++)
		EXPECT(block[at] == value(from, first + at));
}

static void transfers(int count)
{
	const int right = (rank + 1) % size, left = (rank + size - 1) % size;
	int *one = take(count), *other = take(count + 3), got;
	MPI_Status status;

	for (int root = 0; root < size; root++) {
		fill(one, count, rank);
		DONE(pny_mpi_bcast(one, count, MPI_INT, root, comm, NULL));
		check(one, count, root, 0);
	}
	fill(one, count, rank);
	DONE(pny_mpi_sendrecv(one, count, MPI_INT, right, 5, other, count + 3, MPI_INT, left, 5, comm, &status, NULL));
	check(other, count, left, 0);
	MPI_Get_count(&status, MPI_INT, &got);
	EXPECT(status.MPI_SOURCE == left && status.MPI_TAG == 5 && got == count);
	if (rank == 0 && size > 1) {
		DONE(pny_mpi_send(one, count, MPI_INT, 1, 7, comm, NULL));
	} else if (rank == 1) {
		memset(other, 0, sizeof(int));
		DONE(pny_mpi_recv(other, count + 3, MPI_INT, 0, 7, comm, &status, NULL));
		check(other, count, 0, 0);
		MPI_Get_count(&status, MPI_INT, &got);
		EXPECT(status.MPI_SOURCE == 0 && status.MPI_TAG == 7 && got == count);
	}
	/* Nobody. */
	DONE(pny_mpi_send(one, count, MPI_INT, MPI_PROC_NULL, 0, comm, NULL));
	DONE(pny_mpi_recv(one, count, MPI_INT, MPI_PROC_NULL, 0, comm, &status, NULL));
	MPI_Get_count(&status, MPI_INT, &got);
	EXPECT(status.MPI_SOURCE == MPI_PROC_NULL && got == 0);
	check(one, count, rank, 0);
	DONE(pny_mpi_recv(one, count, MPI_INT, MPI_PROC_NULL, 0, comm, MPI_STATUS_IGNORE, NULL));
	/* A chain with ends. */
	DONE(pny_mpi_sendrecv(one, count, MPI_INT, rank + 1 < size ? rank + 1 : MPI_PROC_NULL, 1, other, count, MPI_INT,
			      rank > 0 ? rank - 1 : MPI_PROC_NULL, 1, comm, MPI_STATUS_IGNORE, NULL));
	if (rank > 0)
		check(other, count, rank - 1, 0);
	give(one);
	give(other);
}

/* The check that may hang, whose name is printed then. */
static char hanging[100];

static void hangs(int signal)
{
	(void) signal;
	if (write(2, hanging, strlen(hanging)) < 0)
		_exit(3);
	abort();
}

static void watched(const char *what, int count)
{
	snprintf(hanging, sizeof(hanging), "mpi_calls: rank %d hangs: %s, %d elements\n", rank, what, count);
	alarm(60);
}

/* MPI_Sendrecv that meets plain sends and receives, or other numbers of itself. */
static void unpaired(int count)
{
	const int right = (rank + 1) % size, left = (rank + size - 1) % size, last = size - 1;
	int *one = take(count), *other = take(count);

	signal(SIGALRM, hangs);
	watched("an exchange with a rank that sends, then receives", count);
	fill(one, count, rank);
	if (rank == 0) {
		DONE(pny_mpi_send(one, count, MPI_INT, last, 8, comm, NULL));
		DONE(pny_mpi_recv(other, count, MPI_INT, last, 8, comm, MPI_STATUS_IGNORE, NULL));
	} else if (rank == last) {
		DONE(pny_mpi_sendrecv(one, count, MPI_INT, 0, 8, other, count, MPI_INT, 0, 8, comm, MPI_STATUS_IGNORE, NULL));
	}
	if (rank == 0 || rank == last)
		check(other, count, last - rank, 0);
	watched("an exchange around ranks that receive, then send", count);
	if (rank == 0) {
		DONE(pny_mpi_sendrecv(one, count, MPI_INT, right, 8, other, count, MPI_INT, left, 8, comm, MPI_STATUS_IGNORE,
				      NULL));
	} else {
		DONE(pny_mpi_recv(other, count, MPI_INT, left, 8, comm, MPI_STATUS_IGNORE, NULL));
		DONE(pny_mpi_send(other, count, MPI_INT, right, 8, comm, NULL));
	}
	check(other, count, 0, 0);
	watched("a line of ranks, of which those at the ends exchange once", count);
	if (rank < last) {
		const int before = rank > 0 ? rank - 1 : 1;

		DONE(pny_mpi_sendrecv(one, count, MPI_INT, rank + 1, 8, other, count, MPI_INT, before, 8, comm,
				      MPI_STATUS_IGNORE, NULL));
		check(other, count, before, 0);
	}
	if (rank > 0) {
		const int behind = rank < last ? rank + 1 : last - 1;

		DONE(pny_mpi_sendrecv(one, count, MPI_INT, rank - 1, 8, other, count, MPI_INT, behind, 8, comm,
				      MPI_STATUS_IGNORE, NULL));
		check(other, count, behind, 0);
	}
	alarm(0);
	give(one);
	give(other);
}

static void reductions(int count)
{
	int *one = take(count), *all = take(count);
	const int ranks = size * (size - 1) / 2;

	fill(one, count, rank);
	DONE(pny_mpi_allreduce(one, all, count, MPI_INT, MPI_SUM, comm, NULL));
	for (int at = 0; at < count; at++)
		EXPECT(all[at] == ranks * 1000003 + size * at * 7);
	DONE(pny_mpi_allreduce(one, all, count, MPI_INT, MPI_MAX, comm, NULL));
	check(all, count, size - 1, 0);
	DONE(pny_mpi_allreduce(one, all, count, MPI_INT, MPI_MIN, comm, NULL));
	check(all, count, 0, 0);
	fill(all, count, rank);
	DONE(pny_mpi_allreduce(MPI_IN_PLACE, all, count, MPI_INT, MPI_MAX, comm, NULL));
	check(all, count, size - 1, 0);
	for (int root = 0; root < size; root++) {
		memset(all, 0, (size_t) count * sizeof(int));
		DONE(pny_mpi_reduce(one, rank == root ? all : NULL, count, MPI_INT, MPI_MAX, root, comm, NULL));
		if (rank == root)
			check(all, count, size - 1, 0);
		/* In place at another root MPICH 4.0 crashes itself, on 4096 elements and more. */
		if (root != 0 && (straight || !on_device))
			continue;
		fill(all, count, rank);
		DONE(pny_mpi_reduce(rank == root ? MPI_IN_PLACE : (void *) one, rank == root ? all : NULL, count, MPI_INT,
				    MPI_MAX, root, comm, NULL));
		check(all, count, rank == root ? size - 1 : rank, 0);
	}
	give(one);
	give(all);
}

/* Each type of number, with a value that another width or sign would not give. */
static void numbers(void)
{
	int *block = take(64);
	void *at = block;

#define SUM_OF(type, datatype, first) \
	do { \
		type number = (type) (first), sum = (type) (number * (type) size); \
		memcpy(at, &number, sizeof(number)); \
		DONE(pny_mpi_allreduce(MPI_IN_PLACE, at, 1, datatype, MPI_SUM, comm, NULL)); \
		EXPECT(memcmp(at, &sum, sizeof(sum)) == 0); \
	} while (0)
	SUM_OF(signed char, MPI_SIGNED_CHAR, -7);
	SUM_OF(unsigned char, MPI_UNSIGNED_CHAR, 31);
	SUM_OF(short, MPI_SHORT, -300);
	SUM_OF(unsigned short, MPI_UNSIGNED_SHORT, 9000);
	SUM_OF(int, MPI_INT, -70000);
	SUM_OF(unsigned, MPI_UNSIGNED, 700000000U);
	SUM_OF(long, MPI_LONG, -5000000000L);
	SUM_OF(unsigned long, MPI_UNSIGNED_LONG, 5000000000UL);
	SUM_OF(long long, MPI_LONG_LONG, -5000000000LL);
	SUM_OF(int8_t, MPI_INT8_T, -7);
	SUM_OF(int64_t, MPI_INT64_T, -5000000000LL);
	SUM_OF(uint64_t, MPI_UINT64_T, 5000000000ULL);
	SUM_OF(float, MPI_FLOAT, 0.5);
	SUM_OF(double, MPI_DOUBLE, 1e300);
#ifdef MPIX_C_FLOAT16
	/* Ones, and how many: 1, 2, 3 and 4 in binary16. */
	if (on_device && !straight && size <= 4) {
		static const uint16_t counted[] = {0x3c00, 0x4000, 0x4200, 0x4400};
		uint16_t ones[3] = {0x3c00, 0x3c00, 0x3c00};

		memcpy(at, ones, sizeof(ones));
		DONE(pny_mpi_allreduce(MPI_IN_PLACE, at, 3, MPIX_C_FLOAT16, MPI_SUM, comm, NULL));
		memcpy(ones, at, sizeof(ones));
		EXPECT(ones[0] == counted[size - 1] && ones[2] == counted[size - 1]);
	}
#endif
	give(block);
}

static void shares(int count)
{
	int *one = take(count), *all = take(count * size), *theirs = take(count * size);

	fill(one, count, rank);
	for (int root = 0; root < size; root++) {
		DONE(pny_mpi_gather(one, count, MPI_INT, rank == root ? all : NULL, rank == root ? count : 0, MPI_INT, root,
				    comm, NULL));
		for (int from = 0; rank == root && from < size; from++)
			check(all + from * count, count, from, 0);
		/* The root's share is in its place. */
		memset(all, 0, (size_t) count * (size_t) size * sizeof(int));
		fill(all + rank * count, count, rank);
		DONE(pny_mpi_gather(rank == root ? MPI_IN_PLACE : (void *) one, count, MPI_INT, rank == root ? all : NULL,
				    count, MPI_INT, root, comm, NULL));
		for (int from = 0; rank == root && from < size; from++)
			check(all + from * count, count, from, 0);
		fill(all, count * size, root);
		DONE(pny_mpi_scatter(rank == root ? all : NULL, count, MPI_INT, theirs, count, MPI_INT, root, comm, NULL));
		check(theirs, count, root, rank * count);
		DONE(pny_mpi_scatter(rank == root ? all : NULL, count, MPI_INT, rank == root ? MPI_IN_PLACE : (void *) theirs,
				     count, MPI_INT, root, comm, NULL));
		check(theirs, count, root, rank * count);
		check(all, count * size, root, 0);
	}
	memset(all, 0, (size_t) count * (size_t) size * sizeof(int));
	DONE(pny_mpi_allgather(one, count, MPI_INT, all, count, MPI_INT, comm, NULL));
	for (int from = 0; from < size; from++)
		check(all + from * count, count, from, 0);
	memset(all, 0, (size_t) count * (size_t) size * sizeof(int));
	fill(all + rank * count, count, rank);
	DONE(pny_mpi_allgather(MPI_IN_PLACE, 0, MPI_INT, all, count, MPI_INT, comm, NULL));
	for (int from = 0; from < size; from++)
		check(all + from * count, count, from, 0);
	/* Bytes count, not elements. */
	fill(all, count * size, rank);
	DONE(pny_mpi_alltoall(all, 4 * count, MPI_BYTE, theirs, count, MPI_INT, comm, NULL));
	for (int from = 0; from < size; from++)
		check(theirs + from * count, count, from, rank * count);
	give(one);
	give(all);
	give(theirs);
}

/* Of all ranks alike, so that none waits. */
static void refuse_another_device(void)
{
	void *theirs, *ours;
	uint64_t address;

	EXPECT(retain(&theirs, (device + 1) % gpus) == 0 && retain(&ours, device) == 0);
	EXPECT(use(theirs) == 0 && allocate(&address, 4096) == 0 && use(ours) == 0);
	REFUSED(PNY_ERR_INVALID, "is memory of device",
		pny_mpi_bcast((void *) (uintptr_t) address, 4096, MPI_BYTE, 0, comm, NULL));
	EXPECT(use(theirs) == 0 && release(address) == 0 && use(ours) == 0);
}

static void refusals(void)
{
	int *block = take(64), host = 0;
	MPI_Datatype pairs;
	pny_mpi_comm none = NULL, made_up, second;
	char text[8], *freed;
	size_t length;

	DONE(pny_mpi_plan(comm, text, sizeof(text), &length));
	EXPECT(length > sizeof(text) && strlen(text) == sizeof(text) - 1);
	DONE(pny_mpi_plan(comm, NULL, 0, &length));
	REFUSED(PNY_ERR_INVALID, "text", pny_mpi_plan(comm, NULL, 1, NULL));
	REFUSED(PNY_ERR_INVALID, "pny_mpi_comm is null", pny_mpi_bcast(block, 1, MPI_INT, 0, none, NULL));
	memset(&made_up, 0x55, sizeof(made_up));
	REFUSED(PNY_ERR_STALE, "no pny_mpi_comm", pny_mpi_bcast(block, 1, MPI_INT, 0, made_up, NULL));
	memcpy(&made_up, &pool, sizeof(made_up));
	REFUSED(PNY_ERR_STALE, "no pny_mpi_comm", pny_mpi_comm_destroy(made_up));
	REFUSED(PNY_ERR_INVALID, "made", pny_mpi_comm_create(MPI_COMM_WORLD, 0, NULL));
	REFUSED(PNY_ERR_INVALID, "MPI_COMM_NULL", pny_mpi_comm_create(MPI_COMM_NULL, 0, &second));
	/* All ranks alike, so that none waits. */
	REFUSED(PNY_ERR_INVALID, "devices are", pny_mpi_comm_create(MPI_COMM_WORLD, -1, &second));
	REFUSED(PNY_ERR_INVALID, "devices are", pny_mpi_comm_create(MPI_COMM_WORLD, 64, &second));
	if (size > 1) {
		/* One has no device: the others are told. */
		EXPECT(pny_mpi_comm_create(MPI_COMM_WORLD, rank == 0 ? -1 : device, &second) ==
		       (rank == 0 ? PNY_ERR_INVALID : PNY_ERR_BACKEND));
		if (rank != 0)
			EXPECT(strstr(pny_mpi_last_error(), "another rank") != NULL);
	}

	REFUSED(PNY_ERR_INVALID, "root", pny_mpi_bcast(block, 1, MPI_INT, size, comm, NULL));
	REFUSED(PNY_ERR_INVALID, "root", pny_mpi_reduce(block, block, 1, MPI_INT, MPI_SUM, -1, comm, NULL));
	REFUSED(PNY_ERR_INVALID, "count is -1", pny_mpi_bcast(block, -1, MPI_INT, 0, comm, NULL));
	REFUSED(PNY_ERR_INVALID, "MPI_DATATYPE_NULL", pny_mpi_bcast(block, 1, MPI_DATATYPE_NULL, 0, comm, NULL));
	EXPECT(*pny_mpi_last_error() != 0);
	DONE(pny_mpi_bcast(NULL, 0, MPI_INT, 0, comm, NULL));
	EXPECT(*pny_mpi_last_error() == 0);
	if (straight)
		goto end;
	MPI_Type_vector(2, 1, 2, MPI_INT, &pairs);
	MPI_Type_commit(&pairs);
	REFUSED(PNY_ERR_INVALID, "derived", pny_mpi_bcast(block, 1, pairs, 0, comm, NULL));
	MPI_Type_free(&pairs);
	REFUSED(PNY_ERR_INVALID, "without gaps", pny_mpi_bcast(block, 1, MPI_DOUBLE_INT, 0, comm, NULL));
	REFUSED(PNY_ERR_INVALID, "reduced by", pny_mpi_allreduce(MPI_IN_PLACE, block, 1, MPI_INT, MPI_PROD, comm, NULL));
	REFUSED(PNY_ERR_INVALID, "reduced of", pny_mpi_allreduce(MPI_IN_PLACE, block, 1, MPI_BYTE, MPI_SUM, comm, NULL));
	REFUSED(PNY_ERR_INVALID, "the other the device's", pny_mpi_allreduce(&host, block, 1, MPI_INT, MPI_SUM, comm, NULL));
	REFUSED(PNY_ERR_INVALID, "MPI_IN_PLACE", pny_mpi_alltoall(MPI_IN_PLACE, 0, MPI_INT, block, 1, MPI_INT, comm, NULL));
	REFUSED(PNY_ERR_INVALID, "named",
		pny_mpi_recv(block, 1, MPI_INT, MPI_ANY_SOURCE, 0, comm, MPI_STATUS_IGNORE, NULL));
	REFUSED(PNY_ERR_INVALID, "named", pny_mpi_recv(block, 1, MPI_INT, 0, MPI_ANY_TAG, comm, MPI_STATUS_IGNORE, NULL));
	REFUSED(PNY_ERR_INVALID, "tag", pny_mpi_send(block, 1, MPI_INT, 0, -5, comm, NULL));
	REFUSED(PNY_ERR_INVALID, "no rank", pny_mpi_send(block, 1, MPI_INT, size, 0, comm, NULL));
	if (cuda == NULL) {
		REFUSED(PNY_ERR_INVALID, "behind the block's end", pny_mpi_bcast(block, 65, MPI_INT, 0, comm, NULL));
		REFUSED(PNY_ERR_INVALID, "no handle", pny_mpi_bcast(block, 1, MPI_INT, 0, comm, block));
	} else if (gpus > 1) {
		refuse_another_device();
	}
	/* Memory that was freed: of all ranks, as it would go to MPI, which tells nobody. */
	freed = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(freed != MAP_FAILED);
	munmap(freed + 4096, 4096);
	DONE(pny_mpi_bcast(freed, 4096, MPI_BYTE, 0, comm, NULL));
	REFUSED(PNY_ERR_INVALID, "were they freed", pny_mpi_bcast(freed, 4097, MPI_BYTE, 0, comm, NULL));
	munmap(freed, 4096);
	REFUSED(PNY_ERR_INVALID, "were they freed", pny_mpi_send(freed, 10, MPI_CHAR, rank, 0, comm, NULL));
	/* Counts that differ. */
	if (size > 1) {
		int *longer = take(50000);
		EXPECT(pny_mpi_bcast(longer, rank == 0 ? 50000 : 49999, MPI_INT, 0, comm, NULL) != PNY_OK);
		EXPECT(strstr(pny_mpi_last_error(), "length") != NULL || strstr(pny_mpi_last_error(), "counts") != NULL);
		give(longer);
	}
end:
	give(block);
	/* It works still. */
	transfers(100);
}

int main(int argc, char **argv)
{
	static const int counts[] = {0, 1, 255, 256, 257, 300, 511, 513, 4096, 70001};
	const char *path = getenv("PINYARD_CUDA_AWARE");
	pny_pool_config config;
	pny_mpi_comm first;
	int *left, big = 0, gpu = 0;

	for (int at = 1; at < argc; at++) {
		big |= strcmp(argv[at], "big") == 0;
		gpu |= strcmp(argv[at], "cuda") == 0;
	}
	straight = path != NULL && strcmp(path, "1") == 0;
	EXPECT(pny_mpi_comm_create(MPI_COMM_WORLD, device, &comm) == PNY_ERR_NOT_READY);
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (gpu)
		open_gpu();
	memset(&config, 0, sizeof(config));
	config.size = sizeof(config);
	config.memory = PNY_MEMORY_DEVICE;
	config.driver = gpu ? PNY_DRIVER_CUDA : PNY_DRIVER_SIMULATED;
	config.device = (uint32_t) device;
	DONE(pny_pool_create(&config, &pool));
	DONE(pny_stream_create(pool, NULL, &stream));
	DONE(pny_mpi_comm_create(MPI_COMM_WORLD, device, &first));
	DONE(pny_mpi_comm_create(MPI_COMM_WORLD, device, &comm));
	for (on_device = 0; on_device < 2; on_device++) {
		for (unsigned at = 0; at < sizeof(counts) / sizeof(counts[0]); at++) {
			transfers(counts[at]);
			if (size > 1)
				unpaired(counts[at]);
			reductions(counts[at]);
			shares(counts[at]);
		}
		numbers();
	}
	on_device = 1;
	refusals();
	if (big) {
		for (int length = 16 << 20; length <= (16 << 20) + 5000; length += 5000)
			transfers(length);
		reductions((16 << 20) + 5000);
		if (!straight && size > 1) {
			/* They differ behind the first block. */
			const int length = (16 << 20) + (rank == 0 ? 5000 : 0);
			int *block = take(length);

			EXPECT(pny_mpi_bcast(block, length, MPI_INT, 0, comm, NULL) != PNY_OK);
			EXPECT(strstr(pny_mpi_last_error(), "length") != NULL || strstr(pny_mpi_last_error(), "equal") != NULL);
			give(block);
		}
	}
	DONE(pny_mpi_comm_destroy(comm));
	REFUSED(PNY_ERR_STALE, "no pny_mpi_comm", pny_mpi_comm_destroy(comm));
	comm = first;
	transfers(5000);
	DONE(pny_mpi_comm_destroy(first));
	DONE(pny_mpi_comm_create(MPI_COMM_WORLD, device, &first));
	DONE(pny_stream_destroy(stream));
	DONE(pny_pool_destroy(pool));
	left = malloc(sizeof(int));
	MPI_Finalize();
	REFUSED(PNY_ERR_NOT_READY, "finalised", pny_mpi_bcast(left, 1, MPI_INT, 0, first, NULL));
	REFUSED(PNY_ERR_NOT_READY, "finalised", pny_mpi_send(left, 1, MPI_INT, 0, 0, first, NULL));
	DONE(pny_mpi_comm_destroy(first));
	free(left);
	EXPECT(pny_mpi_comm_create(MPI_COMM_WORLD, device, &comm) == PNY_ERR_NOT_READY);
	if (rank == 0)
		printf("completed\n");
	return 0;
}
