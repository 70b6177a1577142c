#include "model/weights_source.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"
#include "common/memory.h"
#include "model/checksums.h"
#include "model/pack.h"
#include "model/part_build.h"
#include "model/part_layout.h"
#include "model/vendor_folder.h"

struct weights_source {
    char *dir;
    struct model_config config;
    struct pack *pack;            /* NULL: a vendor folder */
    struct vendor_folder *vendor; /* NULL: a pack */
    struct part_builder builder;  /* vendor */
    char identity[33];
};

static const char *const precisions[N_PRECISIONS] = {"exact", "int8", "int4"};

const char *precision_name(enum precision precision)
{
    CHECK(precision < N_PRECISIONS);
    return precisions[precision];
}

int precision_by_name(const char *name)
{
    for (int i = 0; i < N_PRECISIONS; i++)
        if (!strcmp(name, precisions[i]))
            return i;
    return -1;
}

/* Every part must be buildable before anybody waits for the first one. */
static enum status check_parts(struct weights_source *source, struct error *err)
{
    enum part_kind part = PART_EMBEDDING;
    int layer = 0;
    do {
        struct part_layout layout;
        enum status status = part_build_layout(&source->builder, &layout, part, layer, err);
        if (status)
            return status;
    } while (part_next(&source->config, &part, &layer));
    return STATUS_OK;
}

static enum status open_vendor(struct weights_source *source, struct error *err)
{
    enum status status = model_config_read(&source->config, source->dir, err);
    if (!status)
        status = vendor_folder_open(&source->vendor, source->dir, err);
    if (status)
        return status;
    part_builder_init(&source->builder, source->vendor, &source->config, PRECISION_EXACT);
    status = check_parts(source, err);
    if (!status)
        status = checksums_establish(source->vendor, err);
    return status ? status : checksums_identity(source->vendor, source->identity, err);
}

static enum status open_pack(struct weights_source *source, struct error *err)
{
    enum status status = pack_open(&source->pack, source->dir, err);
    if (status)
        return status;
    source->config = source->pack->config;
    memcpy(source->identity, source->pack->identity, sizeof source->identity);
    return STATUS_OK;
}

static int has_file(const char *dir, const char *name)
{
    char *path = xasprintf("%s/%s", dir, name);
    int is_there = !access(path, F_OK);
    free(path);
    return is_there;
}

enum status weights_source_open(struct weights_source **out, const char *dir, struct error *err)
{
    struct weights_source *source = xcalloc(1, sizeof *source);
    source->dir = xstrdup(dir);
    enum status status;
    if (has_file(dir, PACK_MANIFEST))
        status = open_pack(source, err);
    else if (has_file(dir, PACK_JOURNAL))
        status = error_set(err, STATUS_INVALID, "%s: an unfinished pack; the same hearth convert or synth again finishes it", dir);
    else
        status = open_vendor(source, err);
    if (status)
        weights_source_close(&source);
    *out = source;
    return status;
}

void weights_source_close(struct weights_source **source)
{
    if (!*source)
        return;
    pack_close(&(*source)->pack);
    part_builder_release(&(*source)->builder);
    vendor_folder_close(&(*source)->vendor);
    free((*source)->dir);
    free(*source);
    *source = NULL;
}

const struct model_config *weights_source_config(const struct weights_source *source)
{
    return &source->config;
}

const char *weights_source_dir(const struct weights_source *source)
{
    return source->dir;
}

enum precision weights_source_precision(const struct weights_source *source)
{
    return source->pack ? source->pack->precision : PRECISION_EXACT;
}

const char *weights_source_identity(const struct weights_source *source)
{
    return source->identity;
}

void weights_source_layout(const struct weights_source *source, enum part_kind part, int layer, struct part_layout *layout)
{
    CHECK(config_has_part(&source->config, part, layer));
    if (source->pack)
        *layout = pack_find(source->pack, part, layer)->layout;
    else /* cannot fail: every part was checked when the folder was opened */
        CHECK(!part_build_layout((struct part_builder *)&source->builder, layout, part, layer, NULL));
}

const struct pack *weights_source_pack(const struct weights_source *source)
{
    return source->pack;
}

uint64_t weights_source_part_bytes(const struct weights_source *source, enum part_kind part, int layer)
{
    struct part_layout layout;
    if (!config_has_part(&source->config, part, layer))
        return 0;
    weights_source_layout(source, part, layer, &layout);
    return layout.bytes;
}

static enum status build_tensors(struct weights_source *source, const struct part_layout *layout, uint8_t *image, struct error *err)
{
    for (int i = 0; i < layout->n_tensors; i++) {
        const struct tensor_place *t = &layout->tensors[i];
        int step = part_build_block_rows(t);
        for (int row = 0; row < t->rows; row += step) {
            int rows = t->rows - row < step ? t->rows - row : step;
            uint8_t *data = image + t->offset + (uint64_t)row * format_row_bytes(t->format, t->cols);
            enum status status = part_build_rows(&source->builder, layout, i, row, rows, data, NULL, err);
            if (status)
                return status;
        }
    }
    return STATUS_OK;
}

static enum status load_vendor(struct weights_source *source, const struct part_layout *layout, uint8_t *image, struct error *err)
{
    enum status status = STATUS_OK;
    if (layout->kind != PART_EXPERTS)
        status = build_tensors(source, layout, image, err);
    for (int i = 0; i < layout->n_records && !status; i++)
        status = part_build_record(&source->builder, layout, i, image + (uint64_t)i * layout->record_bytes, err);
    source->builder.kv_b_layer = -1;
    if (!status)
        return vendor_folder_finish(source->vendor, err);
    vendor_folder_abandon(source->vendor);
    return status;
}

static uint8_t *allocate_image(uint64_t bytes)
{
    uint8_t *image = aligned_alloc(PART_ALIGN_BYTES, bytes);
    if (image)
        memset(image, 0, bytes);
    return image;
}

enum status weights_source_load(struct weights_source *source, enum part_kind part, int layer, struct weights_part *out, struct error *err)
{
    struct part_layout layout;
    *out = (struct weights_part){0};
    if (!config_has_part(&source->config, part, layer))
        return error_set(err, STATUS_NOT_FOUND, "%s: layer %d has no such part", source->dir, layer);
    weights_source_layout(source, part, layer, &layout);
    out->n_bytes = layout.bytes;
    out->bytes = allocate_image(layout.bytes);
    char name[32];
    part_file_name(name, part, layer);
    enum status status;
    if (!out->bytes)
        status = error_set(err, STATUS_NO_MEMORY, "%s: needs %llu bytes of memory", source->dir, (unsigned long long)layout.bytes);
    else if (source->pack)
        status = pack_read_part(source->pack, pack_find(source->pack, part, layer), out->bytes, err);
    else
        status = load_vendor(source, &layout, out->bytes, err);
    if (!status)
        status = part_layout_views(&layout, out, err);
    if (status) {
        weights_part_release(out);
        return error_wrap(err, "load %s", name);
    }
    return STATUS_OK;
}

/* Begins to hash every tensor that the part is made of; vendor_folder_finish reads them. */
static enum status touch_tensors(struct weights_source *source, enum part_kind part, int layer, struct error *err)
{
    struct tensor_spec specs[PART_TENSORS_MAX];
    int n_experts = part == PART_EXPERTS ? source->config.n_experts : 1;
    enum status status = STATUS_OK;
    for (int expert = 0; expert < n_experts; expert++) {
        int n = part_tensor_specs(&source->config, part, layer, expert, specs);
        for (int i = 0; i < n && !status; i++) {
            struct vendor_matrix m;
            uint8_t none;
            status = vendor_matrix_find(&m, source->vendor, &source->config, &specs[i], part, layer, expert, err);
            if (!status)
                status = vendor_folder_read(source->vendor, m.tensor, 0, 0, &none, err);
            if (!status && m.scale)
                status = vendor_folder_read(source->vendor, m.scale, 0, 0, &none, err);
        }
    }
    return status;
}

enum status weights_source_verify(struct weights_source *source, enum part_kind part, int layer, struct error *err)
{
    CHECK(config_has_part(&source->config, part, layer));
    if (source->pack)
        return pack_read_part(source->pack, pack_find(source->pack, part, layer), NULL, err);
    enum status status = touch_tensors(source, part, layer, err);
    if (!status)
        return vendor_folder_finish(source->vendor, err);
    vendor_folder_abandon(source->vendor);
    return status;
}

void weights_part_release(struct weights_part *part)
{
    free(part->bytes);
    free(part->experts);
    *part = (struct weights_part){0};
}

const struct matrix *weights_part_matrix(const struct weights_part *part, const char *name)
{
    for (int i = 0; i < part->n_tensors; i++)
        if (!strcmp(part->names[i], name))
            return &part->tensors[i];
    CHECK(!"a tensor that part_tensor_specs lists");
    return NULL;
}
