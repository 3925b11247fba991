/*
 * The neighbour's side: starts an MPI, UCX or libfabric in the process, and asks
 * its own caches and handlers whether they were told of a change.
 *
 * Built once for each neighbour (run.sh): WITH_MPI, WITH_UCX, WITH_OFI. What an
 * MPI brings along (libopen-pal, libucm) is found by name.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef WITH_MPI
#include <mpi.h>
#endif
#ifdef WITH_UCX
#include <limits.h>
#include <ucs/memory/rcache.h>
#endif
#ifdef WITH_OFI
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>
#endif
#include <ucm/api/ucm.h>

/* NULL, or why it cannot be used. */
typedef const char *failure;

/* ---- A handler that remembers which bytes it was told of. ---- */

/* What is watched at the moment; one at a time. */
static char *watched;
static size_t watched_length;

struct handler {
	/* Bytes of the watched range below this have been named, from its start. */
	size_t covered;
};

static void hear(struct handler *handler, const char *address, size_t length)
{
	/* Parts come in order, where a change is told in parts. */
	if (address <= watched + handler->covered && address + length > watched + handler->covered) {
		size_t end = (size_t) (address + length - watched);

		handler->covered = end < watched_length ? end : watched_length;
	}
}

static struct handler opal, ucm;

static void opal_release(void *address, size_t length, void *data, bool from_allocator)
{
	(void) data, (void) from_allocator;
	hear(&opal, address, length);
}

static failure opal_start(void)
{
	int (*enroll)(void (*)(void *, size_t, void *, bool), void *) =
		dlsym(RTLD_DEFAULT, "opal_mem_hooks_register_release");

	if (!enroll)
		return "no opal_mem_hooks_register_release in the process";
	/* Refused where no component of this MPI wants hooks: then it is told nothing. */
	enroll(opal_release, NULL);
	return NULL;
}

static void ucm_release(ucm_event_type_t type, ucm_event_t *event, void *data)
{
	(void) data;
	if (type == UCM_EVENT_VM_UNMAPPED)
		hear(&ucm, event->vm_unmapped.address, event->vm_unmapped.size);
}

static failure ucm_start(void)
{
	ucs_status_t (*set)(int, int, ucm_event_callback_t, void *) = dlsym(RTLD_DEFAULT, "ucm_set_event_handler");

	if (!set)
		return "no ucm_set_event_handler in the process";
	return set(UCM_EVENT_VM_UNMAPPED, 100, ucm_release, NULL) == UCS_OK ? NULL : "ucm_set_event_handler failed";
}

static failure handler_watch(void) { return NULL; }
static int opal_told(void) { return opal.covered == watched_length; }
static int ucm_told(void) { return ucm.covered == watched_length; }

/* ---- ucs_rcache: told if the next get registers anew. ---- */

#ifdef WITH_UCX
static ucs_rcache_t *rcache;
static long registrations;

static ucs_status_t reg(void *context, ucs_rcache_t *cache, void *arg, ucs_rcache_region_t *region,
			uint16_t flags)
{
	(void) context, (void) cache, (void) arg, (void) region, (void) flags;
	registrations++;
	return UCS_OK;
}

static void dereg(void *context, ucs_rcache_t *cache, ucs_rcache_region_t *region)
{
	(void) context, (void) cache, (void) region;
}

static void dump(void *context, ucs_rcache_t *cache, ucs_rcache_region_t *region, char *text, size_t max)
{
	(void) context, (void) cache, (void) region;
	if (max)
		text[0] = '\0';
}

static failure rcache_start(void)
{
	static const ucs_rcache_ops_t ops = {.mem_reg = reg, .mem_dereg = dereg, .dump_region = dump};
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

	return ucs_rcache_create(&params, "neighbour", NULL, &rcache) == UCS_OK ? NULL : "ucs_rcache_create failed";
}

/* Whether a get had to register. */
static int rcache_get(void)
{
	ucs_rcache_region_t *region;
	long before = registrations;

	if (ucs_rcache_get(rcache, watched, watched_length, PROT_READ | PROT_WRITE, NULL, &region) != UCS_OK)
		return -1;
	ucs_rcache_region_put(rcache, region);
	return registrations > before;
}

static failure rcache_watch(void)
{
	rcache_get();
	return rcache_get() == 0 ? NULL : "ucs_rcache does not cache";
}

static int rcache_told(void) { return rcache_get() == 1; }
#endif

/* ---- libfabric's cache, over the stand-in verbs device (preloaded). ---- */

#ifdef WITH_OFI
static struct fid_domain *domain;
static long (*device_registrations)(void);

static failure fabric_start(void)
{
	struct fi_info *hints = fi_allocinfo(), *info = NULL;
	struct fid_fabric *fabric = NULL;
	int result;

	device_registrations = dlsym(RTLD_DEFAULT, "fakeverbs_registrations");
	if (!device_registrations)
		return "the stand-in device is not preloaded";
	hints->fabric_attr->prov_name = strdup("verbs");
	hints->ep_attr->type = FI_EP_DGRAM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
	hints->mode = ~0ull;
	result = fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info);
	if (!result)
		result = fi_fabric(info->fabric_attr, &fabric, NULL);
	if (!result)
		result = fi_domain(fabric, info, &domain, NULL);
	fi_freeinfo(hints);
	return result ? "no domain on the stand-in device" : NULL;
}

static int fabric_get(void)
{
	long before = device_registrations();
	struct fid_mr *region;

	if (fi_mr_reg(domain, watched, watched_length, FI_SEND | FI_RECV, 0, 0, 0, &region, NULL))
		return -1;
	fi_close(&region->fid);
	return device_registrations() > before;
}

static failure fabric_watch(void)
{
	fabric_get();
	return fabric_get() == 0 ? NULL : "libfabric does not cache";
}

static int fabric_told(void) { return fabric_get() == 1; }
#endif

/* ---- What the program calls. ---- */

static const struct cache {
	const char *name;
	failure (*start)(void);
	failure (*watch)(void);
	/* 1: told of a change of all watched bytes since `watch`. */
	int (*told)(void);
} caches[] = {
	{"opal", opal_start, handler_watch, opal_told},
	{"ucm", ucm_start, handler_watch, ucm_told},
#ifdef WITH_UCX
	{"ucs_rcache", rcache_start, rcache_watch, rcache_told},
#endif
#ifdef WITH_OFI
	{"libfabric", fabric_start, fabric_watch, fabric_told},
#endif
};

static const struct cache *used[4];
static int count;

failure theirs_start(const char *names);
int theirs_count(void);
const char *theirs_name(int index);
failure theirs_watch(void *address, size_t length);
int theirs_told(int index);
void theirs_stop(void);

/* Starts the library, and those of its caches that `names` has. */
failure theirs_start(const char *names)
{
	size_t at;
#ifdef WITH_MPI
	int provided;

	if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
		return "MPI_Init_thread failed";
#endif
	for (at = 0; at < sizeof(caches) / sizeof(*caches); at++) {
		failure why;

		if (!strstr(names, caches[at].name))
			continue;
		why = caches[at].start();
		if (why)
			return why;
		used[count++] = &caches[at];
	}
	return count ? NULL : "none of the caches named is built in";
}

int theirs_count(void) { return count; }
const char *theirs_name(int index) { return used[index]->name; }
int theirs_told(int index) { return used[index]->told(); }

failure theirs_watch(void *address, size_t length)
{
	int index;

	watched = address;
	watched_length = length;
	for (index = 0; index < count; index++) {
		failure why = used[index]->watch();

		if (why)
			return why;
	}
	opal.covered = ucm.covered = 0;
	return NULL;
}

void theirs_stop(void)
{
#ifdef WITH_OFI
	if (domain)
		fi_close(&domain->fid);
#endif
#ifdef WITH_UCX
	if (rcache)
		ucs_rcache_destroy(rcache);
#endif
#ifdef WITH_MPI
	MPI_Finalize();
#endif
}
