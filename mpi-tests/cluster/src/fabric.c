/* A libfabric endpoint to its own process, through a device: fi_read and fi_write. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

struct fabric {
	struct fid_av *addresses;
	struct fid_cq *completions;
	struct fid_ep *endpoint;
	fi_addr_t self;
	int by_address;
};

void fabric_close(struct fabric *fabric)
{
	if (fabric->endpoint)
		fi_close(&fabric->endpoint->fid);
	if (fabric->completions)
		fi_close(&fabric->completions->fid);
	if (fabric->addresses)
		fi_close(&fabric->addresses->fid);
	free(fabric);
}

/* Null, and libfabric's negative errno, where a call fails. */
struct fabric *fabric_open(struct fid_domain *domain, struct fi_info *info, int *failed)
{
	struct fabric *fabric = calloc(1, sizeof *fabric);
	struct fi_cq_attr queue = { .format = FI_CQ_FORMAT_CONTEXT, .size = 16 };
	struct fi_av_attr table = { .type = FI_AV_TABLE, .count = 1 };
	char name[256];
	size_t length = sizeof name;
	int error = -FI_ENOMEM;

	if (!fabric)
		goto out;
	fabric->by_address = (info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
	error = fi_cq_open(domain, &queue, &fabric->completions, NULL);
	if (!error)
		error = fi_av_open(domain, &table, &fabric->addresses, NULL);
	if (!error)
		error = fi_endpoint(domain, info, &fabric->endpoint, NULL);
	if (!error)
		error = fi_ep_bind(fabric->endpoint, &fabric->completions->fid, FI_TRANSMIT | FI_RECV);
	if (!error)
		error = fi_ep_bind(fabric->endpoint, &fabric->addresses->fid, 0);
	if (!error)
		error = fi_enable(fabric->endpoint);
	if (!error)
		error = fi_getname(&fabric->endpoint->fid, name, &length);
	if (!error && fi_av_insert(fabric->addresses, name, 1, &fabric->self, 0, NULL) != 1)
		error = -FI_EADDRNOTAVAIL;
out:
	*failed = error;
	if (!error)
		return fabric;
	if (fabric)
		fabric_close(fabric);
	return NULL;
}

/* To or from offset 0 of the region at `at`. 0, or libfabric's negative errno;
 * -FI_ETIMEDOUT after 20 s. */
int fabric_move(struct fabric *fabric, int write, void *local, size_t length, void *descriptor, uint64_t at,
		uint64_t key)
{
	uint64_t remote = fabric->by_address ? at : 0;
	struct fi_context2 context;
	struct fi_cq_entry done;
	struct fi_cq_err_entry failed = { 0 };
	time_t end = time(NULL) + 20;
	ssize_t answer;

	do {
		answer = write ? fi_write(fabric->endpoint, local, length, descriptor, fabric->self, remote, key, &context)
			       : fi_read(fabric->endpoint, local, length, descriptor, fabric->self, remote, key, &context);
		if (answer == -FI_EAGAIN) /* The connection is made meanwhile. */
			fi_cq_read(fabric->completions, &done, 0);
	} while (answer == -FI_EAGAIN && time(NULL) <= end);
	if (answer)
		return (int) answer;
	do
		answer = fi_cq_read(fabric->completions, &done, 1);
	while (answer == -FI_EAGAIN && time(NULL) <= end);
	if (answer == 1)
		return 0;
	if (answer == -FI_EAVAIL && fi_cq_readerr(fabric->completions, &failed, 0) == 1)
		return -failed.err;
	return answer == -FI_EAGAIN ? -FI_ETIMEDOUT : (int) answer;
}
