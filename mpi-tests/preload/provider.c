/*
 * A provider's file: its start, which offers nothing, and with OPEN the way to the cache
 * that it was built with, which says that there is none.
 */
#include <stddef.h>

#define EXPORTED __attribute__((visibility("default")))

EXPORTED void *fi_prov_ini(void);
EXPORTED void *fi_prov_ini(void) { return NULL; }

#ifdef OPEN
EXPORTED int ofi_open_mr_cache(void);
EXPORTED int ofi_open_mr_cache(void) { return -38; }
#endif
