#include "model/sequence_state.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/memory.h"

static enum status grow(struct sequence_state *sequence, struct error *err)
{
    while (sequence->n_blocks < sequence->blocks_max) {
        enum status status = position_cache_take(sequence->cache, &sequence->blocks[sequence->n_blocks], err);
        if (status)
            return status;
        sequence->n_blocks++;
    }
    return STATUS_OK;
}

enum status sequence_state_init(struct sequence_state *sequence, struct position_cache *cache, int positions, struct error *err)
{
    CHECK(positions > 0);
    *sequence = (struct sequence_state){.cache = cache, .blocks_max = cache_blocks_for(positions), .positions_max = positions};
    sequence->blocks = xcalloc((size_t)sequence->blocks_max, sizeof *sequence->blocks);
    enum status status = grow(sequence, err);
    if (status)
        sequence_state_release(sequence);
    return status;
}

void sequence_state_release(struct sequence_state *sequence)
{
    for (int i = 0; i < sequence->n_blocks; i++)
        position_cache_drop(sequence->cache, sequence->blocks[i]);
    free(sequence->blocks);
    *sequence = (struct sequence_state){0};
}

enum status sequence_state_fork(struct sequence_state *sequence, const struct sequence_state *from, int length, int positions, struct error *err)
{
    CHECK(length >= 0 && length <= from->length && length <= positions);
    *sequence = (struct sequence_state){
        .cache = from->cache, .blocks_max = cache_blocks_for(positions), .positions_max = positions, .length = length};
    sequence->blocks = xcalloc((size_t)sequence->blocks_max, sizeof *sequence->blocks);
    for (; sequence->n_blocks < cache_blocks_for(length); sequence->n_blocks++) {
        sequence->blocks[sequence->n_blocks] = from->blocks[sequence->n_blocks];
        position_cache_hold(sequence->cache, sequence->blocks[sequence->n_blocks]);
    }
    sequence->mtp_length = from->mtp_length < length ? from->mtp_length : length > 0 ? length - 1 : 0;
    enum status status = grow(sequence, err);
    if (status)
        sequence_state_release(sequence);
    return status;
}

enum status sequence_state_prepare(struct sequence_state *sequence, int begin, int end, struct error *err)
{
    struct position_cache *cache = sequence->cache;
    CHECK(begin >= 0 && begin < end);
    if (end > sequence->positions_max)
        return error_set(err, STATUS_INVALID, "position %d is beyond the %d that this sequence was opened for", end - 1, sequence->positions_max);
    for (int i = begin / CACHE_BLOCK_POSITIONS; i <= (end - 1) / CACHE_BLOCK_POSITIONS; i++) {
        int old = sequence->blocks[i], own;
        if (cache->references[old] == 1)
            continue;
        enum status status = position_cache_take(cache, &own, err);
        if (status)
            return status;
        memcpy(position_cache_block(cache, own), position_cache_block(cache, old), cache->block_floats * sizeof(float));
        position_cache_drop(cache, old);
        sequence->blocks[i] = own;
    }
    return STATUS_OK;
}

void sequence_state_truncate(struct sequence_state *sequence, int length)
{
    CHECK(length >= 0);
    if (sequence->length > length)
        sequence->length = length;
    /* M_p was made from h_p and the token at p + 1: it stays true only while both do. */
    int mtp_length = length > 0 ? length - 1 : 0;
    if (sequence->mtp_length > mtp_length)
        sequence->mtp_length = mtp_length;
}

static float *row_of(const struct sequence_state *sequence, int position, size_t offset, int width)
{
    int index = position / CACHE_BLOCK_POSITIONS;
    CHECK(position >= 0 && index < sequence->n_blocks);
    return position_cache_block(sequence->cache, sequence->blocks[index]) + offset + (size_t)(position % CACHE_BLOCK_POSITIONS) * (size_t)width;
}

float *sequence_state_latent(const struct sequence_state *sequence, int layer, int position)
{
    return row_of(sequence, position, sequence->cache->latent_offset[layer], sequence->cache->latent_width);
}

float *sequence_state_index_key(const struct sequence_state *sequence, int layer, int position)
{
    return row_of(sequence, position, sequence->cache->index_offset[layer], sequence->cache->index_dim);
}
