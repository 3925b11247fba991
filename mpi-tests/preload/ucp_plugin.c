/*
 * What a program opens with dlopen, as Open MPI opens its components for UCX. It is
 * linked with libucp alone: libucm is an indirect dependency, and UCX looks for the
 * functions to patch elsewhere than where libucm is a direct one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <ucp/api/ucp.h>
#include <ucm/api/ucm.h>

int plugin_start(void);

static void on_event(ucm_event_type_t type, ucm_event_t *event, void *argument)
{
	(void) type;
	(void) event;
	(void) argument;
}

/* Starts UCX and has it hook: 0, or what failed. */
int plugin_start(void)
{
	ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
	ucs_status_t (*hook)(int, int, ucm_event_callback_t, void *);
	void *ucm = dlopen("libucm.so.0", RTLD_NOLOAD | RTLD_NOW);
	ucp_config_t *config;
	ucp_context_h context;

	if (!ucm || ucp_config_read(NULL, NULL, &config) != UCS_OK || ucp_init(&params, config, &context) != UCS_OK)
		return 1;
	*(void **) &hook = dlsym(ucm, "ucm_set_event_handler");
	return hook && hook(UCM_EVENT_VM_UNMAPPED, 1000, on_event, NULL) == UCS_OK ? 0 : 2;
}
