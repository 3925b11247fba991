/*
 * A stand-in for an RDMA device, preloaded in front of libibverbs and librdmacm
 * (LD_PRELOAD): one device "fake0" with one active InfiniBand port.
 *
 * It is exactly enough for libfabric's unmodified verbs provider to list
 * "fake0-dgram", to open a domain on it and to register memory through its
 * registration cache. There is no data path. Every registration that reaches
 * the device is counted: that is how a test sees whether the cache was asked or
 * the device.
 *
 * `abi_compat` of the context stays 0, so the inline functions of verbs.h fall
 * back from the extended operations to the plain functions below.
 */
#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

/* verbs.h makes these two macros over inline functions; we define the symbols. */
#undef ibv_reg_mr
#undef ibv_query_port

#define UNUSED __attribute__((unused))

static struct ibv_device the_device = {
	.node_type = IBV_NODE_CA,
	.transport_type = IBV_TRANSPORT_IB,
	.name = "fake0",
	.dev_name = "uverbs0",
};

static struct ibv_context the_context = {
	.device = &the_device,
	.cmd_fd = -1,
	.async_fd = -1,
	.num_comp_vectors = 1,
};

/* libfabric polls async_fd for device events, and refuses a context without. */
__attribute__((constructor)) static void open_descriptors(void)
{
	the_context.async_fd = eventfd(0, EFD_CLOEXEC);
	the_context.cmd_fd = eventfd(0, EFD_CLOEXEC);
	pthread_mutex_init(&the_context.mutex, NULL);
}

/* ---- Finding the device: libfabric lists through librdmacm, then opens. ---- */

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(2, sizeof(*list));

	if (list)
		list[0] = &the_device;
	if (count)
		*count = list ? 1 : 0;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

struct ibv_context *ibv_open_device(UNUSED struct ibv_device *device)
{
	return &the_context;
}

int ibv_close_device(UNUSED struct ibv_context *context)
{
	return 0;
}

struct ibv_context **rdma_get_devices(int *count)
{
	struct ibv_context **list = calloc(2, sizeof(*list));

	if (list)
		list[0] = &the_context;
	if (count)
		*count = list ? 1 : 0;
	return list;
}

void rdma_free_devices(struct ibv_context **list)
{
	free(list);
}

/* libfabric's EFA provider asks every device; without an answer it crashes. */
int efadv_query_device(struct ibv_context *context, void *attributes, uint32_t length);
int efadv_query_device(UNUSED struct ibv_context *context, UNUSED void *attributes, UNUSED uint32_t length)
{
	return EOPNOTSUPP;
}

/* ---- What it can do: the provider derives its limits from these. ---- */

int ibv_query_device(UNUSED struct ibv_context *context, struct ibv_device_attr *attributes)
{
	memset(attributes, 0, sizeof(*attributes));
	strcpy(attributes->fw_ver, "0.0");
	attributes->vendor_id = 0x15b3;
	attributes->vendor_part_id = 1;
	attributes->max_mr_size = UINT64_MAX;
	attributes->max_qp = 1024;
	attributes->max_qp_wr = 4096;
	attributes->max_sge = 8;
	attributes->max_cq = 1024;
	attributes->max_cqe = 65536;
	attributes->max_mr = 65536;
	attributes->max_pd = 64;
	attributes->max_srq = 64;
	attributes->max_srq_wr = 4096;
	attributes->max_srq_sge = 8;
	attributes->phys_port_cnt = 1;
	return 0;
}

int ibv_query_port(UNUSED struct ibv_context *context, UNUSED uint8_t port,
		   struct _compat_ibv_port_attr *compat)
{
	/* The inline caller passes its struct ibv_port_attr, cleared. */
	struct ibv_port_attr *attributes = (void *) compat;

	attributes->state = IBV_PORT_ACTIVE;
	attributes->max_mtu = IBV_MTU_4096;
	attributes->active_mtu = IBV_MTU_4096;
	attributes->gid_tbl_len = 1;
	attributes->pkey_tbl_len = 1;
	attributes->max_msg_sz = 1u << 30;
	attributes->lid = 1;
	attributes->active_width = 2;
	attributes->active_speed = 32;
	attributes->phys_state = 5;
	return 0;
}

int ibv_query_gid(UNUSED struct ibv_context *context, UNUSED uint8_t port, UNUSED int index,
		  union ibv_gid *gid)
{
	memset(gid, 0, sizeof(*gid));
	gid->global.subnet_prefix = htobe64(0xfe80000000000000ull);
	gid->global.interface_id = htobe64(0x1234);
	return 0;
}

int ibv_query_pkey(UNUSED struct ibv_context *context, UNUSED uint8_t port, UNUSED int index,
		   __be16 *pkey)
{
	*pkey = 0xffff;
	return 0;
}

/* ---- Objects that fi_getinfo and fi_domain make to see whether they can. ---- */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *domain = calloc(1, sizeof(*domain));

	if (domain)
		domain->context = context;
	return domain;
}

int ibv_dealloc_pd(struct ibv_pd *domain)
{
	free(domain);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, UNUSED void *user,
			     UNUSED struct ibv_comp_channel *channel, UNUSED int vector)
{
	struct ibv_cq *queue = calloc(1, sizeof(*queue));

	if (queue) {
		queue->context = context;
		queue->cqe = entries;
	}
	return queue;
}

int ibv_destroy_cq(struct ibv_cq *queue)
{
	free(queue);
	return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *domain, struct ibv_qp_init_attr *attributes)
{
	struct ibv_qp *pair;

	/* The provider probes for the largest inline size that is accepted. */
	if (attributes->cap.max_inline_data > 256) {
		errno = EINVAL;
		return NULL;
	}
	pair = calloc(1, sizeof(*pair));
	if (pair) {
		pair->context = domain->context;
		pair->pd = domain;
		pair->qp_type = attributes->qp_type;
		pair->qp_num = 1;
	}
	return pair;
}

int ibv_destroy_qp(struct ibv_qp *pair)
{
	free(pair);
	return 0;
}

int ibv_get_async_event(UNUSED struct ibv_context *context, UNUSED struct ibv_async_event *event)
{
	errno = EAGAIN;
	return -1;
}

int ibv_fork_init(void)
{
	return 0;
}

/* ---- Registration: a key of its own for each, and a count. `pinyard bench` has its own,
 * which costs what that of the other caches costs. ---- */
#ifndef STAND_IN_WITHOUT_REGISTRATION
static _Atomic uint32_t next_key = 1;
static _Atomic long registrations;
static _Atomic long deregistrations;

/* For the tests, found with dlsym. */
long fakeverbs_registrations(void);
long fakeverbs_deregistrations(void);

long fakeverbs_registrations(void)
{
	return atomic_load(&registrations);
}

long fakeverbs_deregistrations(void)
{
	return atomic_load(&deregistrations);
}

static struct ibv_mr *register_memory(struct ibv_pd *domain, void *address, size_t length)
{
	struct ibv_mr *region = calloc(1, sizeof(*region));

	if (!region)
		return NULL;
	region->context = domain->context;
	region->pd = domain;
	region->addr = address;
	region->length = length;
	region->lkey = atomic_fetch_add(&next_key, 1);
	region->rkey = region->lkey;
	atomic_fetch_add(&registrations, 1);
	return region;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *domain, void *address, size_t length, UNUSED int access)
{
	return register_memory(domain, address, length);
}

/* What verbs.h calls when the access flags have an optional one. */
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *domain, void *address, size_t length,
				UNUSED uint64_t iova, UNUSED unsigned int access)
{
	return register_memory(domain, address, length);
}

int ibv_dereg_mr(struct ibv_mr *region)
{
	free(region);
	atomic_fetch_add(&deregistrations, 1);
	return 0;
}
#endif
