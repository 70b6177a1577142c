/* What attention remembers per position, in blocks of 64 positions from one arena per process (docs/MODEL.md, "Caches").
 *
 * A block holds, for every layer of the range it was made for, 64 latent rows (kv_lora_rank normed values, then rope_dim rotated ones) and, where the
 * layer runs an indexer, 64 index keys; all f32. Blocks are counted references: sequences that share a prefix share its blocks, and a block is
 * copied when somebody writes into it while others hold it. Thread: the one that runs the layers. */
#ifndef HEARTH_MODEL_POSITION_CACHE_H
#define HEARTH_MODEL_POSITION_CACHE_H

#include <stdint.h>

#include "common/error.h"
#include "model/config.h"

enum { CACHE_BLOCK_POSITIONS = 64 };

struct position_cache {
    int layer_begin, layer_end;
    int latent_width, index_dim;
    size_t latent_offset[LAYERS_MAX + 1]; /* floats from the block's start, by layer */
    size_t index_offset[LAYERS_MAX + 1];  /* only where the layer has an indexer */
    size_t block_floats;
    float *memory; /* [n_blocks][block_floats] */
    int *references;
    int *free_blocks; /* stack of block numbers */
    int n_blocks, n_free;
};

/* Bytes of one block for layers [layer_begin, layer_end) (n_layers is the MTP layer's index). */
size_t position_cache_block_bytes(const struct model_config *config, int layer_begin, int layer_end);

/* Allocates n_blocks blocks. Fails with STATUS_NO_MEMORY. */
enum status position_cache_init(struct position_cache *cache, const struct model_config *config, int layer_begin, int layer_end, int n_blocks,
                                struct error *err);
void position_cache_release(struct position_cache *cache);

/* A block with one reference, or STATUS_BUSY when all are in use. */
enum status position_cache_take(struct position_cache *cache, int *block, struct error *err);
void position_cache_hold(struct position_cache *cache, int block);
void position_cache_drop(struct position_cache *cache, int block);

static inline float *position_cache_block(const struct position_cache *cache, int block)
{
    return cache->memory + (size_t)block * cache->block_floats;
}

static inline int cache_blocks_for(int positions)
{
    return (positions + CACHE_BLOCK_POSITIONS - 1) / CACHE_BLOCK_POSITIONS;
}

#endif
