#include "proto/handshake.h"

#include <string.h>

#include "proto/limits.h"

/* One text of the numeric class that must be the same at both ends. */
static enum status check_same(const Hearth__Hello *hello, const char *what, const char *theirs, const char *ours, const char *way_out,
                              struct error *err)
{
    if (!strcmp(theirs, ours))
        return STATUS_OK;
    return error_set(err, STATUS_INVALID, "node '%s' has %s %s, the coordinator has %s: %s", hello->node, what, theirs, ours, way_out);
}

static enum status check_model(const Hearth__Hello *hello, const struct numeric_class *own, uint32_t n_layers, struct error *err)
{
    enum status status = check_same(hello, "model", hello->numeric->model_identity, own->model_identity,
                                    "run hearth inspect on both and give both the same pack", err);
    if (!status && hello->n_layers != n_layers)
        status = error_set(err, STATUS_INVALID, "node '%s' has a model of %u layers, the coordinator's has %u: give both the same pack",
                           hello->node, hello->n_layers, n_layers);
    return status;
}

static enum status check_numeric(const Hearth__Hello *hello, const struct numeric_class *own, struct error *err)
{
    const Hearth__NumericClass *theirs = hello->numeric;
    if (theirs->contract != own->contract)
        return error_set(err, STATUS_INVALID,
                         "node '%s' (version %s) computes by version %u of the numeric contract, the coordinator (version %s) by %u: "
                         "install the same version on both",
                         hello->node, hello->version, theirs->contract, HEARTH_VERSION, own->contract);
    enum status status =
        check_same(hello, "activations in", theirs->activations, own->activations, "start both with --exact, or both without", err);
    if (!status)
        status = check_same(hello, "caches in", theirs->cache, own->cache, "start both with the same cache type", err);
    if (!status)
        status = check_same(hello, "rows on the wire in", theirs->wire, own->wire, "start both with the same wire type", err);
    return status;
}

enum status handshake_check(const Hearth__Hello *hello, uint32_t protocol, const struct numeric_class *own, uint32_t n_layers,
                            uint32_t *code, struct error *err)
{
    *code = REFUSE_PROTOCOL;
    if (hello->protocol != protocol)
        return error_set(
            err, STATUS_INVALID,
            "node '%s' (version %s) speaks protocol %u, the coordinator (version %s) speaks %u: install the same version on both",
            hello->node, hello->version, hello->protocol, HEARTH_VERSION, protocol);
    *code = REFUSE_MODEL;
    enum status status = check_model(hello, own, n_layers, err);
    if (status)
        return status;
    *code = REFUSE_NUMERIC;
    status = check_numeric(hello, own, err);
    if (!status)
        *code = 0;
    return status;
}
