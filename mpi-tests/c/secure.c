/*
 * Whether PINYARD_HOOKS is heeded: the status of a registry that is made under it. Run
 * with a mechanism that there is not, plainly and from a set-user-ID copy.
 */
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>

#include <pinyard.h>

int main(void)
{
	pny_registry_config config;
	pny_registry registry;
	pny_status status;

	memset(&config, 0, sizeof(config));
	config.size = sizeof(config);
	config.backend = PNY_BACKEND_MLOCK;
	status = pny_registry_create(&config, &registry);
	printf("AT_SECURE %lu, status %d %s\n", getauxval(AT_SECURE), (int) status, pny_last_error());
	return status;
}
