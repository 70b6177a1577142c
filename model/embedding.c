#include "model/embedding.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"
#include "common/memory.h"
#include "model/files.h"
#include "model/pack.h"
#include "model/part_layout.h"

enum status embedding_load(struct embedding *e, struct weights_source *source, struct error *err)
{
    *e = (struct embedding){.fd = -1};
    enum status status = weights_source_load(source, PART_EMBEDDING, 0, &e->part, err);
    if (!status)
        e->table = *weights_part_matrix(&e->part, "embed_tokens");
    return status;
}

/* The file that was verified is the one that stays open. */
static enum status open_verified(struct embedding *e, struct weights_source *source, struct error *err)
{
    struct stat before, after;
    enum status status = file_open_regular(&e->fd, e->path, 0, &before, err);
    if (!status)
        status = weights_source_verify(source, PART_EMBEDDING, 0, err);
    if (!status && (stat(e->path, &after) || after.st_ino != before.st_ino || after.st_dev != before.st_dev ||
                    after.st_mtim.tv_sec != before.st_mtim.tv_sec || after.st_mtim.tv_nsec != before.st_mtim.tv_nsec))
        status = error_set(err, STATUS_CORRUPT, "%s: changed while it was verified", e->path);
    return status;
}

enum status embedding_open(struct embedding *e, struct weights_source *source, struct error *err)
{
    const struct pack *pack = weights_source_pack(source);
    if (!pack)
        return embedding_load(e, source, err);
    const struct pack_part *part = pack_find(pack, PART_EMBEDDING, 0);
    const struct tensor_place *place = &part->layout.tensors[0];
    size_t row_bytes = format_row_bytes(place->format, place->cols), scale_bytes = format_scale_row_bytes(place->format, place->cols);
    *e = (struct embedding){.fd = -1,
                            .path = xasprintf("%s/%s", pack->dir, part->file),
                            .data_offset = PACK_HEADER_BYTES + place->offset,
                            .scales_offset = PACK_HEADER_BYTES + place->scales_offset};
    size_t aligned = (row_bytes + TENSOR_ALIGN_BYTES - 1) & ~(size_t)(TENSOR_ALIGN_BYTES - 1);
    e->row = xcalloc(1, aligned + scale_bytes + 1);
    e->table = (struct matrix){place->format, place->rows, place->cols, e->row, scale_bytes ? e->row + aligned : NULL, 1.0f};
    CHECK(place->format != FORMAT_INT4); /* its factor lies elsewhere; every token uses the embedding, so it never is int4 */
    enum status status = open_verified(e, source, err);
    if (status)
        embedding_release(e);
    return status;
}

uint64_t embedding_bytes(const struct weights_source *source, int in_file)
{
    return in_file && weights_source_pack(source) ? 0 : weights_source_part_bytes(source, PART_EMBEDDING, 0);
}

void embedding_release(struct embedding *e)
{
    if (e->path && e->fd >= 0)
        close(e->fd);
    free(e->path);
    free(e->row);
    weights_part_release(&e->part);
    *e = (struct embedding){.fd = -1};
}

enum status embedding_row(const struct embedding *e, int token, float *out, struct error *err)
{
    CHECK(token >= 0 && token < e->table.rows);
    if (!e->path) {
        matrix_row_to_f32(&e->table, token, out);
        return STATUS_OK;
    }
    size_t row_bytes = format_row_bytes(e->table.format, e->table.cols),
           scale_bytes = format_scale_row_bytes(e->table.format, e->table.cols);
    struct matrix row = e->table;
    row.rows = 1;
    enum status status = file_read_at(e->fd, e->row, row_bytes, e->data_offset + (uint64_t)token * row_bytes, e->path, err);
    if (!status && scale_bytes)
        status =
            file_read_at(e->fd, (uint8_t *)e->table.scales, scale_bytes, e->scales_offset + (uint64_t)token * scale_bytes, e->path, err);
    if (!status)
        matrix_row_to_f32(&row, 0, out);
    return status;
}
