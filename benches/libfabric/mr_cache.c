/* libfabric's registration cache (ofi_mr_cache) as its users reach it: fi_mr_reg and
 * fi_close in a domain of the verbs provider, behind a few functions. The library is opened
 * at run time. There is no NIC in it: the program has the stand-in device of mpi-tests, which
 * its link exports (build.rs) for libfabric to find in place of libibverbs and librdmacm, and
 * whose registration is the driver's dummy. Where there are no headers, there is no peer. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if __has_include(<rdma/fi_ext.h>) && __has_include(<infiniband/verbs.h>) && __has_include(<rdma/rdma_cma.h>)
#define STAND_IN_WITHOUT_REGISTRATION
#include "../../mpi-tests/incidents/stand_in/fakeverbs.c"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>

/* The driver's dummy registration. */
extern void bench_register(void *counter);

static struct {
	__typeof__(fi_getinfo) *getinfo;
	__typeof__(fi_dupinfo) *dupinfo;
	__typeof__(fi_freeinfo) *freeinfo;
	__typeof__(fi_fabric) *fabric;
	__typeof__(fi_open) *open;
	__typeof__(fi_strerror) *strerror;
	__typeof__(fi_tostr) *tostr;
} lib;

static void *counter;
static struct fi_info *info;
static struct fid_fabric *fabric;

/* ---- The device's registration: one region for all, as nobody looks at it. ---- */

static struct ibv_mr the_region = {.lkey = 1, .rkey = 1};

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
	(void)pd, (void)address, (void)length, (void)access;
	bench_register(counter);
	return &the_region;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned access)
{
	(void)iova;
	return ibv_reg_mr(pd, address, length, (int)access);
}

int ibv_dereg_mr(struct ibv_mr *region)
{
	(void)region;
	return 0;
}

/* ---- A monitor that reports what bench_libfabric_unmapped is told. ---- */

static int start(struct fid_mem_monitor *monitor)
{
	(void)monitor;
	return 0;
}

static void stop(struct fid_mem_monitor *monitor)
{
	(void)monitor;
}

static int subscribe(struct fid_mem_monitor *monitor, const void *address, size_t length)
{
	(void)monitor, (void)address, (void)length;
	return 0;
}

static void unsubscribe(struct fid_mem_monitor *monitor, const void *address, size_t length)
{
	(void)monitor, (void)address, (void)length;
}

static bool valid(struct fid_mem_monitor *monitor, const void *address, size_t length)
{
	(void)monitor, (void)address, (void)length;
	return true;
}

static struct fi_ops_mem_monitor operations = {
	.size = sizeof(operations),
	.start = start,
	.stop = stop,
	.subscribe = subscribe,
	.unsubscribe = unsubscribe,
	.valid = valid,
};

static struct fid_mem_monitor the_monitor = {.fid.fclass = FI_CLASS_MEM_MONITOR, .export_ops = &operations};

static int import_monitor(void)
{
	struct fid *cache;
	int status = lib.open(FI_VERSION(1, 13), "mr_cache", NULL, 0, 0, &cache, NULL);

	if (status == 0) {
		status = fi_import_fid(cache, &the_monitor.fid, 0);
		fi_close(cache);
	}
	return status;
}

/* ---- What the driver calls. ---- */

static char failure[256];

__attribute__((format(printf, 1, 2))) static const char *failed(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(failure, sizeof(failure), format, arguments);
	va_end(arguments);
	return failure;
}

static const char *open_library(void)
{
	void *library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);

	if (library == NULL)
		return dlerror();
#define FIND(name) (*(void **)&lib.name = dlsym(library, "fi_" #name))
	if (FIND(getinfo) && FIND(dupinfo) && FIND(freeinfo) && FIND(fabric) && FIND(open) && FIND(strerror) && FIND(tostr))
		return NULL;
#undef FIND
	return "libfabric.so.1 lacks a function of fi_getinfo, fi_dupinfo, fi_freeinfo, fi_fabric, fi_open, fi_strerror and fi_tostr";
}

/* Opens the library: its caches hold at most `regions`, and are told of changes by its own
 * memhooks, or, where `imported`, by bench_libfabric_unmapped. Registrations tell
 * bench_register of `made`. What went wrong, or NULL. */
const char *bench_libfabric_load(unsigned long regions, bool imported, void *made)
{
	struct fi_info *hints;
	char most[32];
	const char *absent;
	int status;

	counter = made;
	snprintf(most, sizeof(most), "%lu", regions);
	setenv("FI_PROVIDER", "verbs", 1);
	setenv("FI_MR_CACHE_MAX_COUNT", most, 1);
	setenv("FI_MR_CACHE_MAX_SIZE", "0x7fffffffffffffff", 1);
	if (imported)
		unsetenv("FI_MR_CACHE_MONITOR");
	else
		setenv("FI_MR_CACHE_MONITOR", "memhooks", 1);
	absent = open_library();
	if (absent != NULL)
		return absent;
	if (imported && (status = import_monitor()) != 0)
		return failed("fi_import_fid(mr_cache, a monitor) failed: %s", lib.strerror(-status));
	hints = lib.dupinfo(NULL);
	if (hints == NULL)
		return "fi_dupinfo(NULL) failed";
	hints->fabric_attr->prov_name = strdup("verbs");
	hints->ep_attr->type = FI_EP_DGRAM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->mode = ~0ull;
	status = lib.getinfo(FI_VERSION(1, 13), NULL, NULL, 0, hints, &info);
	lib.freeinfo(hints);
	if (status != 0)
		return failed("fi_getinfo(verbs) failed: %s", lib.strerror(-status));
	status = lib.fabric(info->fabric_attr, &fabric, NULL);
	return status == 0 ? NULL : failed("fi_fabric(verbs) failed: %s", lib.strerror(-status));
}

const char *bench_libfabric_version(void)
{
	return lib.tostr("", FI_TYPE_VERSION);
}

/* A domain with a cache of its own. NULL on failure. */
struct fid_domain *bench_libfabric_create(void)
{
	struct fid_domain *domain;

	return fi_domain(fabric, info, &domain, NULL) == 0 ? domain : NULL;
}

void bench_libfabric_destroy(struct fid_domain *domain)
{
	fi_close(&domain->fid);
}

/* Registers and closes, which leaves the region in the cache. */
bool bench_libfabric_hit(struct fid_domain *domain, const void *address, size_t length)
{
	struct fid_mr *region;

	if (fi_mr_reg(domain, address, length, FI_SEND | FI_RECV, 0, 0, 0, &region, NULL) != 0)
		return false;
	return fi_close(&region->fid) == 0;
}

/* The event that an imported monitor reports. */
void bench_libfabric_unmapped(const void *address, size_t length)
{
	the_monitor.import_ops->notify(&the_monitor, address, length);
}

#else

const char *bench_libfabric_load(unsigned long regions, bool imported, void *made)
{
	(void)regions, (void)imported, (void)made;
	return "built without libfabric's headers";
}

/* Nobody calls these: nothing was loaded. */
const char *bench_libfabric_version(void)
{
	return "";
}

void *bench_libfabric_create(void)
{
	return NULL;
}

void bench_libfabric_destroy(void *domain)
{
	(void)domain;
}

bool bench_libfabric_hit(void *domain, const void *address, size_t length)
{
	(void)domain, (void)address, (void)length;
	return false;
}

void bench_libfabric_unmapped(const void *address, size_t length)
{
	(void)address, (void)length;
}
#endif
