#include "model/position_cache.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/memory.h"

static size_t layer_floats(const struct model_config *c, int layer)
{
    return (size_t)CACHE_BLOCK_POSITIONS * (size_t)(c->kv_lora_rank + c->rope_dim + (c->has_indexer[layer] ? c->index_dim : 0));
}

size_t position_cache_block_bytes(const struct model_config *config, int layer_begin, int layer_end)
{
    size_t floats = 0;
    for (int layer = layer_begin; layer < layer_end; layer++)
        floats += layer_floats(config, layer);
    return floats * sizeof(float);
}

enum status position_cache_init(struct position_cache *cache, const struct model_config *config, int layer_begin, int layer_end, int n_blocks,
                                struct error *err)
{
    CHECK(layer_begin >= 0 && layer_begin < layer_end && layer_end <= config_layers_with_mtp(config) && n_blocks > 0);
    *cache = (struct position_cache){.layer_begin = layer_begin,
                                     .layer_end = layer_end,
                                     .latent_width = config->kv_lora_rank + config->rope_dim,
                                     .index_dim = config->index_dim,
                                     .n_blocks = n_blocks,
                                     .n_free = n_blocks};
    for (int layer = layer_begin; layer < layer_end; layer++) {
        cache->latent_offset[layer] = cache->block_floats;
        cache->index_offset[layer] = cache->block_floats + (size_t)CACHE_BLOCK_POSITIONS * (size_t)cache->latent_width;
        cache->block_floats += layer_floats(config, layer);
    }
    size_t bytes = cache->block_floats * sizeof(float) * (size_t)n_blocks;
    cache->memory = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (!cache->memory)
        return error_set(err, STATUS_NO_MEMORY, "cannot allocate %zu bytes of position caches; ask for a shorter context", bytes);
    cache->references = xcalloc((size_t)n_blocks, sizeof *cache->references);
    cache->free_blocks = xcalloc((size_t)n_blocks, sizeof *cache->free_blocks);
    for (int i = 0; i < n_blocks; i++)
        cache->free_blocks[i] = n_blocks - 1 - i; /* lowest number first: used memory stays together */
    return STATUS_OK;
}

void position_cache_release(struct position_cache *cache)
{
    free(cache->memory);
    free(cache->references);
    free(cache->free_blocks);
    *cache = (struct position_cache){0};
}

enum status position_cache_take(struct position_cache *cache, int *block, struct error *err)
{
    if (!cache->n_free)
        return error_set(err, STATUS_BUSY, "all %d blocks of %d positions are in use; wait for another answer to end or start with a longer context",
                         cache->n_blocks, CACHE_BLOCK_POSITIONS);
    *block = cache->free_blocks[--cache->n_free];
    CHECK(cache->references[*block] == 0);
    cache->references[*block] = 1;
    return STATUS_OK;
}

void position_cache_hold(struct position_cache *cache, int block)
{
    CHECK(cache->references[block] > 0);
    cache->references[block]++;
}

void position_cache_drop(struct position_cache *cache, int block)
{
    CHECK(cache->references[block] > 0);
    if (--cache->references[block] == 0)
        cache->free_blocks[cache->n_free++] = block;
}
