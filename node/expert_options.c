#include "node/expert_options.h"

#include <string.h>

#include "common/check.h"
#include "node/block_reader.h"
#include "node/expert_store.h"

enum prefetch_mode expert_prefetch_mode(const struct expert_options *o)
{
    return !strcmp(o->prefetch, "on") ? PREFETCH_ON : !strcmp(o->prefetch, "off") ? PREFETCH_OFF : PREFETCH_AUTO;
}

int expert_read_depth(const struct expert_options *o, int n_stores)
{
    CHECK(n_stores >= 1 && n_stores <= BLOCK_STORES_MAX);
    int asked = o->read_depth ? (int)o->read_depth : EXPERT_READ_DEPTH, most = BLOCK_READS_MAX / n_stores;
    return asked < most ? asked : most;
}

double expert_emulated_rate(const struct expert_options *o)
{
    struct emulated_drive drive;
    struct error ignored;
    int n_stores = 1;
    for (const char *at = o->store; at && (at = strchr(at, ',')); at++)
        n_stores++;
    return emulated_drive_parse(o->emulate_disk, &drive, &ignored) ? 0 : drive.bytes_per_second * n_stores;
}
