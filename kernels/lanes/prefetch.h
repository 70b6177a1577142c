/* Where to prefetch while a tile of weight rows is read, for every matmul variant. Each row of the tile is one stream through memory that
 * continues in the same row of the next tile. The hardware's own prefetcher starts again at each row, so ours runs ahead of every stream,
 * over the tile's border. A single stream 6 KiB ahead reads memory 1.1 times as fast as plain loads (4 to 12 KiB measure the same, 2 KiB
 * loses a tenth); several share the first cache with x, and 2 KiB each is best from four x rows on (docs/PERFORMANCE.md, "Kernels"). */
#ifndef HEARTH_KERNELS_LANES_PREFETCH_H
#define HEARTH_KERNELS_LANES_PREFETCH_H

#include <stddef.h>

enum { PREFETCH_ONE_ROW_BYTES = 6144, PREFETCH_ROW_BYTES = 2048, CACHE_LINE_BYTES = 64 };

struct prefetch {
    size_t offset; /* from the tile's first row, of the place in that row's stream; the other rows' streams are whole rows behind */
    size_t left;   /* bytes from there to the end of its row */
    size_t row_bytes;
};

ALWAYS_INLINE struct prefetch prefetch_start(size_t row_bytes, const int rows)
{
    const size_t ahead = rows == 1 ? PREFETCH_ONE_ROW_BYTES : PREFETCH_ROW_BYTES;
    return (struct prefetch){ahead / row_bytes * row_bytes * (size_t)rows + ahead % row_bytes, row_bytes - ahead % row_bytes, row_bytes};
}

/* Before `bytes` of each row are read. */
ALWAYS_INLINE void prefetch_step(struct prefetch *p, const void *tile, const size_t bytes, const int rows)
{
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        for (size_t line = 0; line < bytes; line += CACHE_LINE_BYTES)
            _mm_prefetch((const char *)tile + p->offset + (size_t)r * p->row_bytes + line, _MM_HINT_T0);
    p->offset += bytes;
    if (rows > 1 && p->left > bytes) {
        p->left -= bytes;
    } else if (rows > 1) { /* on to the next tile; a last part of a row that is no multiple of bytes moves the place a little, no harm */
        p->offset += (size_t)(rows - 1) * p->row_bytes;
        p->left = p->row_bytes;
    }
}

/* How far ahead of a tile's scales, which are widened in one go: into the next tile, and for single rows as far as the weights. */
ALWAYS_INLINE size_t prefetch_scales_distance(size_t scales_row_bytes, const int rows)
{
    return (size_t)rows * scales_row_bytes + PREFETCH_ONE_ROW_BYTES / 16; /* 16 bytes of weights for one of scales, in both formats */
}

#endif
