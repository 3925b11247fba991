/* A UCX endpoint to its own process, through a device: puts and gets with remote keys. */
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <ucp/api/ucp.h>

struct ucx {
	ucp_worker_h worker;
	ucp_ep_h endpoint;
};

/* Progresses until the request is done: its status; UCS_ERR_TIMED_OUT after 20 s. */
static ucs_status_t finish(struct ucx *ucx, ucs_status_ptr_t request)
{
	ucs_status_t status;
	time_t end = time(NULL) + 20;

	if (!UCS_PTR_IS_PTR(request))
		return UCS_PTR_STATUS(request);
	do {
		ucp_worker_progress(ucx->worker);
		status = ucp_request_check_status(request);
	} while (status == UCS_INPROGRESS && time(NULL) <= end);
	ucp_request_free(request);
	return status == UCS_INPROGRESS ? UCS_ERR_TIMED_OUT : status;
}

void ucx_close(struct ucx *ucx)
{
	const ucp_request_param_t none = { 0 };

	if (ucx->endpoint)
		finish(ucx, ucp_ep_close_nbx(ucx->endpoint, &none));
	if (ucx->worker)
		ucp_worker_destroy(ucx->worker);
	free(ucx);
}

/* Null, and the status, where a call fails. */
struct ucx *ucx_open(ucp_context_h context, int *failed)
{
	struct ucx *ucx = calloc(1, sizeof *ucx);
	ucp_worker_params_t one_thread = { .field_mask = 0 };
	ucp_ep_params_t to = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS };
	ucp_address_t *self = NULL;
	size_t length;
	ucs_status_t status = UCS_ERR_NO_MEMORY;

	if (!ucx)
		goto out;
	status = ucp_worker_create(context, &one_thread, &ucx->worker);
	if (status == UCS_OK)
		status = ucp_worker_get_address(ucx->worker, &self, &length);
	if (status == UCS_OK) {
		to.address = self;
		status = ucp_ep_create(ucx->worker, &to, &ucx->endpoint);
	}
	if (self)
		ucp_worker_release_address(ucx->worker, self);
out:
	*failed = status;
	if (status == UCS_OK)
		return ucx;
	if (ucx)
		ucx_close(ucx);
	return NULL;
}

/* To or from `at`, with the packed key. The status; complete at the target as well. */
int ucx_move(struct ucx *ucx, int write, void *local, size_t length, uint64_t at, const void *packed)
{
	const ucp_request_param_t none = { 0 };
	ucp_rkey_h key;
	ucs_status_t status = ucp_ep_rkey_unpack(ucx->endpoint, packed, &key);

	if (status != UCS_OK)
		return status;
	status = finish(ucx, write ? ucp_put_nbx(ucx->endpoint, local, length, at, key, &none)
				   : ucp_get_nbx(ucx->endpoint, local, length, at, key, &none));
	if (status == UCS_OK)
		status = finish(ucx, ucp_ep_flush_nbx(ucx->endpoint, &none));
	ucp_rkey_destroy(key);
	return status;
}
