/*
 * Bcast and Allreduce of device memory, with an MPI that knows nothing of devices: the
 * root's field to every rank's device, and the sum of what every rank made of it.
 *
 *   mpirun -n 2 gpu_bcast            the ranks' GPUs, in turn
 *   PINYARD_DRIVER=simulated mpirun -n 2 gpu_bcast
 *                                    simulated ones, where there is none
 *
 *   mpicc gpu_bcast.c $(pkg-config --cflags --libs pinyard pinyard-mpi-openmpi) -ldl
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* secure_getenv */
#endif
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pinyard_mpi.h>

#define FAIL(text) \
	do { \
		fprintf(stderr, "gpu_bcast: line %d: %s\n", __LINE__, text); \
		MPI_Abort(MPI_COMM_WORLD, 1); \
	} while (0)
#define CHECK(call) \
	do { \
		if ((call) != PNY_OK) \
			FAIL(pny_last_error()); \
	} while (0)
#define CHECK_MPI(call) \
	do { \
		if ((call) != PNY_OK) \
			FAIL(pny_mpi_last_error()); \
	} while (0)

enum { CELLS = 300000 };

/* ---- The program's own work on the device: here only copies. ---------------------------- */

/* Of libcuda.so.1, null where the device is simulated: then its memory is the host's. */
static int (*to_device)(uint64_t to, const void *from, size_t bytes);
static int (*to_host)(void *to, uint64_t from, size_t bytes);
static void *cuda;

/* ISO C has no cast from an object's address to a function's. */
static void function(void *to, const char *name)
{
	void *found = dlsym(cuda, name);

	if (found == NULL)
		FAIL(name);
	memcpy(to, &found, sizeof(found));
}

static void open_cuda(int device)
{
	int (*retain)(void **context, int handle), (*set)(void *context);
	void *context;

	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (cuda == NULL)
		FAIL(dlerror());
	function(&retain, "cuDevicePrimaryCtxRetain");
	function(&set, "cuCtxSetCurrent");
	function(&to_device, "cuMemcpyHtoD_v2");
	function(&to_host, "cuMemcpyDtoH_v2");
	if (retain(&context, device) != 0 || set(context) != 0)
		FAIL("the primary context");
}

static void write_cells(double *device, const double *cells)
{
	if (to_device == NULL)
		memcpy(device, cells, CELLS * sizeof(double));
	else if (to_device((uint64_t) (uintptr_t) device, cells, CELLS * sizeof(double)) != 0)
		FAIL("cuMemcpyHtoD");
}

static void read_cells(double *cells, const double *device)
{
	if (to_host == NULL)
		memcpy(cells, device, CELLS * sizeof(double));
	else if (to_host(cells, (uint64_t) (uintptr_t) device, CELLS * sizeof(double)) != 0)
		FAIL("cuMemcpyDtoH");
}

int main(int argc, char **argv)
{
	/* As the library reads it: not where the program has more rights than its caller. */
	const char *driver = secure_getenv("PINYARD_DRIVER");
	const int simulated = driver != NULL && strcmp(driver, "simulated") == 0;
	int rank, size, place, device;
	void *field, *sums;
	double *cells;
	char plan[512];
	MPI_Comm node;
	pny_pool_config config;
	pny_pool pool;
	pny_stream stream;
	pny_mpi_comm comm;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
	MPI_Comm_rank(node, &place);
	MPI_Comm_free(&node);
	device = argc > 1 ? place % atoi(argv[1]) : place; /* the GPUs of a node, one each */

	/* Device memory: pinyard's here; cudaMalloc's would do. */
	memset(&config, 0, sizeof(config));
	config.size = sizeof(config);
	config.memory = PNY_MEMORY_DEVICE;
	config.driver = simulated ? PNY_DRIVER_SIMULATED : PNY_DRIVER_CUDA;
	config.device = simulated ? 0 : (uint32_t) device;
	CHECK(pny_pool_create(&config, &pool));
	CHECK(pny_stream_create(pool, NULL, &stream));
	CHECK(pny_pool_alloc(pool, CELLS * sizeof(double), stream, &field));
	CHECK(pny_pool_alloc(pool, CELLS * sizeof(double), stream, &sums));
	if (!simulated)
		open_cuda(device);

	CHECK_MPI(pny_mpi_comm_create(MPI_COMM_WORLD, device, &comm));
	CHECK_MPI(pny_mpi_plan(comm, plan, sizeof(plan), NULL));
	if (rank == 0)
		printf("%s\n", plan);

	cells = malloc(CELLS * sizeof(double));
	if (cells == NULL)
		FAIL("malloc");
	for (int cell = 0; cell < CELLS; cell++)
		cells[cell] = rank == 0 ? cell * 0.5 : -1.0;
	write_cells(field, cells);
	CHECK_MPI(pny_mpi_bcast(field, CELLS, MPI_DOUBLE, 0, comm, NULL));
	read_cells(cells, field);
	for (int cell = 0; cell < CELLS; cell++)
		if (cells[cell] != cell * 0.5)
			FAIL("a cell is not the root's");

	for (int cell = 0; cell < CELLS; cell++)
		cells[cell] += rank;
	write_cells(field, cells);
	CHECK_MPI(pny_mpi_allreduce(field, sums, CELLS, MPI_DOUBLE, MPI_SUM, comm, NULL));
	read_cells(cells, sums);
	for (int cell = 0; cell < CELLS; cell++)
		if (cells[cell] != size * (cell * 0.5) + size * (size - 1) / 2)
			FAIL("a cell is not the sum");

	CHECK_MPI(pny_mpi_comm_destroy(comm));
	free(cells);
	CHECK(pny_pool_free(pool, field));
	CHECK(pny_pool_free(pool, sums));
	CHECK(pny_stream_destroy(stream));
	CHECK(pny_pool_destroy(pool));
	MPI_Finalize();
	if (rank == 0)
		printf("completed\n");
	return 0;
}
