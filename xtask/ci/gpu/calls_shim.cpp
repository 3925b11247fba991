// Counts the process's calls of the driver through CUPTI, whoever makes them, for
// `pinyard bench pools.calls`. Built where the GPU is: see xtask/ci/gpu/pools.sh.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <cupti.h>
#include <vector>

static std::atomic<uint64_t> calls;
// By the number of a function: whether it counts. What only asks or says which context is
// current does not.
static std::vector<bool> counts;

static void count(void *, CUpti_CallbackDomain, CUpti_CallbackId function, const void *data) {
    bool enters = static_cast<const CUpti_CallbackData *>(data)->callbackSite == CUPTI_API_ENTER;
    if (enters && (function >= counts.size() || counts[function])) calls.fetch_add(1, std::memory_order_relaxed);
}

// Begins to count; no if CUPTI refuses, which it says.
extern "C" bool calls_begin() {
    for (CUpti_CallbackId function = 0; function < CUPTI_DRIVER_TRACE_CBID_SIZE; function++) {
        const char *name = nullptr;
        bool known = cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, function, &name) == CUPTI_SUCCESS && name;
        bool current = known && std::strncmp(name, "cuCtx", 5) == 0 && std::strcmp(name, "cuCtxSynchronize") != 0;
        counts.push_back(!current);
    }
    CUpti_SubscriberHandle subscriber;
    CUptiResult result = cuptiSubscribe(&subscriber, count, nullptr);
    if (result == CUPTI_SUCCESS) result = cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API);
    const char *why = "";
    if (result != CUPTI_SUCCESS) {
        cuptiGetResultString(result, &why);
        std::fprintf(stderr, "CUPTI: %s\n", why);
    }
    return result == CUPTI_SUCCESS;
}

// Calls since then.
extern "C" uint64_t calls_count() { return calls.load(std::memory_order_relaxed); }
