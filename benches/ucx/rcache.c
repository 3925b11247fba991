/* UCX's registration cache (ucs/memory/rcache.h of libucx-dev) with a dummy
 * registration, behind a few functions. */
#include <sys/mman.h>
#include <ucm/api/ucm.h>
#include <ucp/api/ucp_version.h>
#include <ucs/memory/rcache.h>
#include <limits.h>
#include <stddef.h>

static ucs_status_t reg(void *context, ucs_rcache_t *cache, void *arg, ucs_rcache_region_t *region,
                        uint16_t flags)
{
    (void)context, (void)cache, (void)arg, (void)region, (void)flags;
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

/* NULL on failure. */
ucs_rcache_t *bench_ucx_create(void)
{
    ucs_rcache_params_t params = {
        .region_struct_size = sizeof(ucs_rcache_region_t),
        .alignment = 4096,
        .max_alignment = 4096,
        .ucm_events = UCM_EVENT_VM_UNMAPPED,
        .ucm_event_priority = 1000,
        .ops = &ops,
        .max_regions = ULONG_MAX,
        .max_size = SIZE_MAX,
        .max_unreleased = SIZE_MAX,
    };
    ucs_rcache_t *cache;
    return ucs_rcache_create(&params, "bench", NULL, &cache) == UCS_OK ? cache : NULL;
}

void bench_ucx_destroy(ucs_rcache_t *cache)
{
    ucs_rcache_destroy(cache);
}

/* NULL on failure. */
ucs_rcache_region_t *bench_ucx_get(ucs_rcache_t *cache, void *address, size_t length)
{
    ucs_rcache_region_t *region;
    return ucs_rcache_get(cache, address, length, PROT_READ | PROT_WRITE, NULL, &region) == UCS_OK ? region : NULL;
}

void bench_ucx_put(ucs_rcache_t *cache, ucs_rcache_region_t *region)
{
    ucs_rcache_region_put(cache, region);
}

unsigned bench_ucx_major(void)
{
    return UCP_API_MAJOR;
}

unsigned bench_ucx_minor(void)
{
    return UCP_API_MINOR;
}
