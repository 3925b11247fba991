/* A registry over two functions of the program's. */
#ifndef TESTS_REGISTRY_H
#define TESTS_REGISTRY_H

#include <pinyard.h>
#include <string.h>

typedef int pins(void *user, void *address, size_t length, pny_access access, pny_key *key);
typedef int unpins(void *user, const pny_key *key, void *address, size_t length);
/* pny_registry_create, of this copy of the library or another. */
typedef pny_status creates(const struct pny_registry_config *, pny_registry *);

static pny_status registry_over(creates *create, const char *name, pins *pin, unpins *unpin, pny_registry *made) {
    pny_backend_ops ops;
    pny_registry_config config;
    memset(&ops, 0, sizeof ops);
    memset(&config, 0, sizeof config);
    ops.size = sizeof ops;
    ops.name = name;
    ops.register_memory = pin;
    ops.deregister_memory = unpin;
    config.size = sizeof config;
    config.ops = &ops;
    return create(&config, made);
}

#endif
