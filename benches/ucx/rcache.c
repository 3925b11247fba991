/* UCX's registration cache (ucs/memory/rcache.h of libucx-dev) with a dummy
 * registration, behind a few functions. The libraries are opened at run time, and have to
 * be of the version of these headers: the cache's structures are no part of UCX's stable
 * interface. Where there are no headers, there is no peer. */
#include <stddef.h>
#include <stdint.h>

#if __has_include(<ucs/memory/rcache.h>) && __has_include(<ucp/api/ucp_version.h>)
#include <sys/mman.h>
#include <ucp/api/ucp_version.h>
#include <ucm/api/ucm.h>
#include <ucs/memory/rcache.h>
#include <dlfcn.h>
#include <limits.h>

static struct {
	__typeof__(ucs_rcache_create) *create;
	__typeof__(ucs_rcache_destroy) *destroy;
	__typeof__(ucs_rcache_get) *get;
	__typeof__(ucs_rcache_region_put) *put;
	__typeof__(ucm_vm_munmap) *unmapped;
} ucx;

/* The version of the headers: major, minor. */
void bench_ucx_headers(unsigned *major, unsigned *minor)
{
	*major = UCP_API_MAJOR;
	*minor = UCP_API_MINOR;
}

/* What went wrong, or NULL. */
const char *bench_ucx_load(void)
{
	void *ucs = dlopen("libucs.so.0", RTLD_NOW | RTLD_GLOBAL);
	void *ucm = ucs ? dlopen("libucm.so.0", RTLD_NOW | RTLD_GLOBAL) : NULL;
	if (ucm == NULL)
		return dlerror();
	ucx.create = (__typeof__(ucx.create))dlsym(ucs, "ucs_rcache_create");
	ucx.destroy = (__typeof__(ucx.destroy))dlsym(ucs, "ucs_rcache_destroy");
	ucx.get = (__typeof__(ucx.get))dlsym(ucs, "ucs_rcache_get");
	ucx.put = (__typeof__(ucx.put))dlsym(ucs, "ucs_rcache_region_put");
	ucx.unmapped = (__typeof__(ucx.unmapped))dlsym(ucm, "ucm_vm_munmap");
	return ucx.create && ucx.destroy && ucx.get && ucx.put && ucx.unmapped ? NULL : "a symbol is missing";
}

/* The driver's dummy registration. */
extern void bench_register(void *counter);

static ucs_status_t reg(void *context, ucs_rcache_t *cache, void *arg, ucs_rcache_region_t *region,
						uint16_t flags)
{
	(void)cache, (void)arg, (void)region, (void)flags;
	bench_register(context);
	return UCS_OK;
}

static void dereg(void *context, ucs_rcache_t *cache, ucs_rcache_region_t *region)
{
	(void)context, (void)cache, (void)region;
}

static void dump(void *context, ucs_rcache_t *cache, ucs_rcache_region_t *region, char *text, size_t max)
{
	(void)context, (void)cache, (void)region;
	if (max > 0)
		text[0] = '\0';
}

static const ucs_rcache_ops_t ops = {.mem_reg = reg, .mem_dereg = dereg, .dump_region = dump};

/* At most `regions`; `counter` goes to bench_register. NULL on failure. */
ucs_rcache_t *bench_ucx_create(unsigned long regions, void *counter)
{
	ucs_rcache_params_t params = {
		.region_struct_size = sizeof(ucs_rcache_region_t),
		.alignment = 4096,
		.max_alignment = 4096,
		.ucm_events = UCM_EVENT_VM_UNMAPPED,
		.ucm_event_priority = 1000,
		.context = counter,
		.ops = &ops,
		.max_regions = regions,
		.max_size = SIZE_MAX,
		.max_unreleased = SIZE_MAX,
	};
	ucs_rcache_t *cache;
	return ucx.create(&params, "bench", NULL, &cache) == UCS_OK ? cache : NULL;
}

void bench_ucx_destroy(ucs_rcache_t *cache)
{
	ucx.destroy(cache);
}

/* NULL on failure. */
ucs_rcache_region_t *bench_ucx_get(ucs_rcache_t *cache, void *address, size_t length)
{
	ucs_rcache_region_t *region;
	return ucx.get(cache, address, length, PROT_READ | PROT_WRITE, NULL, &region) == UCS_OK ? region : NULL;
}

void bench_ucx_put(ucs_rcache_t *cache, ucs_rcache_region_t *region)
{
	ucx.put(cache, region);
}

/* The event that an external hook reports. */
void bench_ucx_unmapped(void *address, size_t length)
{
	ucx.unmapped(address, length);
}

#else

void bench_ucx_headers(unsigned *major, unsigned *minor)
{
	*major = *minor = 0;
}

const char *bench_ucx_load(void)
{
	return "built without UCX's headers";
}

/* Nobody calls these: nothing was loaded. */
void *bench_ucx_create(unsigned long regions, void *counter)
{
	(void)regions, (void)counter;
	return NULL;
}

void bench_ucx_destroy(void *cache)
{
	(void)cache;
}

void *bench_ucx_get(void *cache, void *address, size_t length)
{
	(void)cache, (void)address, (void)length;
	return NULL;
}

void bench_ucx_put(void *cache, void *region)
{
	(void)cache, (void)region;
}

void bench_ucx_unmapped(void *address, size_t length)
{
	(void)address, (void)length;
}
#endif
