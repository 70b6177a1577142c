#include "node/expert_options.h"

#include "common/check.h"
#include "node/block_reader.h"
#include "node/expert_store.h"

int expert_read_depth(const struct expert_options *o, int n_stores)
{
    CHECK(n_stores >= 1 && n_stores <= BLOCK_STORES_MAX);
    int asked = o->read_depth ? (int)o->read_depth : EXPERT_READ_DEPTH, most = BLOCK_READS_MAX / n_stores;
    return asked < most ? asked : most;
}
