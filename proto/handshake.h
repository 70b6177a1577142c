/* Whether two processes may exchange rows: same protocol, same model, same numeric class. */
#ifndef HEARTH_PROTO_HANDSHAKE_H
#define HEARTH_PROTO_HANDSHAKE_H

#include "common/error.h"
#include "proto/envelope.pb-c.h"

/* What this process has; strings borrowed. */
struct numeric_class {
    uint32_t contract;
    const char *activations, *cache, *wire, *model_identity;
};

/* STATUS_OK, or STATUS_INVALID with *code (enum refuse_code) and a sentence that names both sides' values and the way out ("node 'desktop' has model 3aac..., the
 * coordinator has a2fb...: run hearth inspect on both and copy the pack"). */
enum status handshake_check(const Hearth__Hello *hello, uint32_t protocol, const struct numeric_class *own, uint32_t n_layers, uint32_t *code,
                            struct error *err);

#endif
