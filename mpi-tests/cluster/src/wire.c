/* A reliable connection to one peer, and RDMA through it. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct address {
	uint32_t queue_pair;
	union ibv_gid gid;
};

struct wire {
	struct ibv_cq *completions;
	struct ibv_qp *queue;
	struct ibv_mr *local;
	size_t len;
	char buffer[];
};

void wire_close(struct wire *wire)
{
	if (!wire)
		return;
	if (wire->queue)
		ibv_destroy_qp(wire->queue);
	if (wire->completions)
		ibv_destroy_cq(wire->completions);
	if (wire->local)
		ibv_dereg_mr(wire->local);
	free(wire);
}

/* Null, with errno, where a call fails. GID 0 is the link-local one, which every port has. */
struct wire *wire_open(struct ibv_pd *pd, size_t len, struct address *self)
{
	struct wire *wire = calloc(1, sizeof *wire + len);

	if (!wire)
		return NULL;
	wire->len = len;
	wire->local = ibv_reg_mr(pd, wire->buffer, len, IBV_ACCESS_LOCAL_WRITE);
	wire->completions = ibv_create_cq(pd->context, 4, NULL, NULL, 0);
	if (wire->local && wire->completions) {
		struct ibv_qp_init_attr attr = {
			.send_cq = wire->completions,
			.recv_cq = wire->completions,
			.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
			.qp_type = IBV_QPT_RC,
		};
		wire->queue = ibv_create_qp(pd, &attr);
	}
	if (!wire->queue || ibv_query_gid(pd->context, 1, 0, &self->gid)) {
		int error = errno;
		wire_close(wire);
		errno = error;
		return NULL;
	}
	self->queue_pair = wire->queue->qp_num;
	return wire;
}

char *wire_buffer(struct wire *wire)
{
	return wire->buffer;
}

/* 0, or the errno of the transition that failed. */
int wire_connect(struct wire *wire, const struct address *peer)
{
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
	};
	struct ibv_qp_attr receive = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->queue_pair,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer->gid, .hop_limit = 4 } },
	};
	struct ibv_qp_attr send = {
		.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 5, .rnr_retry = 7, .max_rd_atomic = 1,
	};
	int error = ibv_modify_qp(wire->queue, &init,
				  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

	if (!error)
		error = ibv_modify_qp(wire->queue, &receive,
				      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (!error)
		error = ibv_modify_qp(wire->queue, &send,
				      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	return error;
}

/* The whole buffer, to or from the peer's memory. The completion's status (enum
 * ibv_wc_status), or the negative errno of a call; -ETIMEDOUT after 20 s. */
int wire_transfer(struct wire *wire, int write, uint64_t at, uint32_t rkey)
{
	struct ibv_sge piece = { .addr = (uintptr_t)wire->buffer, .length = wire->len, .lkey = wire->local->lkey };
	struct ibv_send_wr *refused, request = {
		.sg_list = &piece,
		.num_sge = 1,
		.opcode = write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = at, .rkey = rkey },
	};
	struct ibv_wc completion;
	time_t end = time(NULL) + 20;
	int error = ibv_post_send(wire->queue, &request, &refused);

	if (error)
		return -error;
	for (;;) {
		int polled = ibv_poll_cq(wire->completions, 1, &completion);
		if (polled > 0)
			return completion.status;
		if (polled < 0)
			return -EIO;
		if (time(NULL) > end)
			return -ETIMEDOUT;
	}
}

/* For a cache that is told of nothing. */
struct ibv_mr *naive_register(struct ibv_pd *pd, void *at, size_t len, int on_demand, uint32_t *rkey)
{
	struct ibv_mr *region = ibv_reg_mr(pd, at, len,
					   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
						   (on_demand ? IBV_ACCESS_ON_DEMAND : 0));

	if (region)
		*rkey = region->rkey;
	return region;
}

int naive_deregister(struct ibv_mr *region)
{
	return ibv_dereg_mr(region);
}
