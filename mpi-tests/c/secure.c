/*
 * Whatever reads the environment, one after the other, and what each says of it: run with a
 * variable that is refused, plainly and from a set-user-ID copy (secure.sh).
 *
 * -DLIBFABRIC: with libpinyard_preload.so and libfabric, which it looks out for;
 * -DLIBPINYARD_MPI: with libpinyard_mpi, the only rank.
 */
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>

#include <pinyard.h>
#ifdef LIBFABRIC
#include <rdma/fabric.h>
#endif
#ifdef LIBPINYARD_MPI
#include <pinyard_mpi.h>
#endif

static void registry(void)
{
	pny_registry_config config;
	pny_registry made;

	memset(&config, 0, sizeof(config));
	config.size = sizeof(config);
	config.backend = PNY_BACKEND_MLOCK;
	printf("registry: %d", (int) pny_registry_create(&config, &made));
	printf(" %s\n", pny_last_error());
}

static void pool(void)
{
	pny_pool_config config;
	pny_pool made;

	memset(&config, 0, sizeof(config));
	config.size = sizeof(config);
	config.memory = PNY_MEMORY_DEVICE;
	config.driver = PNY_DRIVER_SIMULATED;
	printf("pool: %d", (int) pny_pool_create(&config, &made));
	printf(" %s\n", pny_last_error());
}

/* Where there is no GPU the driver's absence is told. */
static void plug(void)
{
	pny_torch_free(pny_torch_malloc(4096, 0, NULL), 4096, 0, NULL);
	printf("plug: %s\n", pny_last_error());
}

int main(void)
{
	printf("AT_SECURE %lu\n", getauxval(AT_SECURE));
	registry();
	pool();
	plug();
#ifdef LIBFABRIC
	{
		struct fi_info *found = NULL;

		if (fi_getinfo(FI_VERSION(1, 5), NULL, NULL, 0, NULL, &found) == 0)
			fi_freeinfo(found);
	}
#endif
#ifdef LIBPINYARD_MPI
	{
		pny_mpi_comm ranks;

		MPI_Init(NULL, NULL);
		printf("communicator: %d", (int) pny_mpi_comm_create(MPI_COMM_SELF, 0, &ranks));
		printf(" %s\n", pny_mpi_last_error());
		MPI_Finalize();
	}
#endif
	puts("completed");
	return 0;
}
