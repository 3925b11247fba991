/* A reliable connection of a process with itself: RDMA by which its device reads and
 * writes the process's own registrations. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

struct loopback {
	struct ibv_cq *completions;
	struct ibv_qp *queue;
	struct ibv_mr *local;
	size_t len;
	char *buffer;
};

void loopback_close(struct loopback *self)
{
	if (!self)
		return;
	if (self->queue)
		ibv_destroy_qp(self->queue);
	if (self->completions)
		ibv_destroy_cq(self->completions);
	if (self->local)
		ibv_dereg_mr(self->local);
	free(self->buffer);
	free(self);
}

/* The first port that is active, from 1; 0 if none is. */
static int active_port(struct ibv_context *context, struct ibv_port_attr *port)
{
	struct ibv_device_attr device;

	if (ibv_query_device(context, &device))
		return 0;
	for (int number = 1; number <= device.phys_port_cnt; number++)
		if (!ibv_query_port(context, number, port) && port->state == IBV_PORT_ACTIVE)
			return number;
	return 0;
}

/* 0, or an errno. GID 0 is the link-local one, which every port has. */
static int join(struct loopback *self, struct ibv_context *context)
{
	struct ibv_port_attr port;
	union ibv_gid gid;
	int error, number = active_port(context, &port);

	if (!number)
		return ENETDOWN;
	if (ibv_query_gid(context, number, 0, &gid))
		return errno;
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT,
		.port_num = number,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
	};
	struct ibv_qp_attr receive = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = port.active_mtu,
		.dest_qp_num = self->queue->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {
			.is_global = 1,
			.dlid = port.lid,
			.port_num = number,
			.grh = { .dgid = gid, .hop_limit = 1 },
		},
	};
	struct ibv_qp_attr send = {
		.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
	};

	error = ibv_modify_qp(self->queue, &init,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (!error)
		error = ibv_modify_qp(self->queue, &receive,
				      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (!error)
		error = ibv_modify_qp(self->queue, &send,
				      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	return error;
}

/* Null, with errno, where a call fails. */
struct loopback *loopback_open(struct ibv_pd *pd, size_t len)
{
	struct loopback *self = calloc(1, sizeof *self);
	int error;

	if (!self)
		return NULL;
	self->len = len;
	self->buffer = aligned_alloc(4096, len);
	if (self->buffer)
		self->local = ibv_reg_mr(pd, self->buffer, len, IBV_ACCESS_LOCAL_WRITE);
	if (self->local)
		self->completions = ibv_create_cq(pd->context, 4, NULL, NULL, 0);
	if (self->completions) {
		struct ibv_qp_init_attr attr = {
			.send_cq = self->completions,
			.recv_cq = self->completions,
			.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
			.qp_type = IBV_QPT_RC,
		};
		self->queue = ibv_create_qp(pd, &attr);
	}
	error = self->queue ? join(self, pd->context) : errno;
	if (!error)
		return self;
	loopback_close(self);
	errno = error;
	return NULL;
}

char *loopback_buffer(struct loopback *self)
{
	return self->buffer;
}

/* The first `len` bytes of the buffer, to `at` or from there. The completion's status
 * (enum ibv_wc_status), or the negative errno of a call; -ETIMEDOUT after 15 s. */
int loopback_transfer(struct loopback *self, int write, uint64_t at, uint32_t rkey, size_t len)
{
	struct ibv_sge piece = { .addr = (uintptr_t)self->buffer, .length = len, .lkey = self->local->lkey };
	struct ibv_send_wr *refused, request = {
		.sg_list = &piece,
		.num_sge = 1,
		.opcode = write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = at, .rkey = rkey },
	};
	struct ibv_wc completion;
	time_t end = time(NULL) + 15;
	int error = ibv_post_send(self->queue, &request, &refused);

	if (error)
		return -error;
	for (;;) {
		int polled = ibv_poll_cq(self->completions, 1, &completion);

		if (polled > 0)
			return completion.status;
		if (polled < 0)
			return -EIO;
		if (time(NULL) > end)
			return -ETIMEDOUT;
	}
}
