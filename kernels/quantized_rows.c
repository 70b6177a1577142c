#include "kernels/kernels.h"

#include "common/check.h"

static size_t aligned(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

size_t quantized_rows_bytes(int n_rows, int cols)
{
    size_t blocks = (size_t)n_rows * (size_t)blocks_of(cols);
    return aligned(blocks * BLOCK_ELEMENTS) + aligned(blocks * LANES * 4) + aligned(blocks * 2 * 4);
}

void quantized_rows_place(struct quantized_rows *rows, int n_rows, int cols, void *memory)
{
    CHECK(((uintptr_t)memory & 63) == 0);
    size_t blocks = (size_t)n_rows * (size_t)blocks_of(cols);
    char *at = memory;
    *rows = (struct quantized_rows){.n_rows = n_rows, .cols = cols, .n_blocks = blocks_of(cols), .values = (int8_t *)at};
    rows->lane_sums8 = (int32_t *)(at + aligned(blocks * BLOCK_ELEMENTS));
    rows->scales = (float *)(at + aligned(blocks * BLOCK_ELEMENTS) + aligned(blocks * LANES * 4));
}
