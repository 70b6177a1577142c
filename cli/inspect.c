/* hearth inspect: what a pack or a vendor folder holds, and whether all of it is undamaged. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/commands.h"
#include "model/pack.h"
#include "model/part_layout.h"
#include "model/weights_source.h"

struct inspect_arguments {
    int no_verify;
};

static const struct option_row rows[] = {
    {"no-verify", OPTION_FLAG, offsetof(struct inspect_arguments, no_verify), NULL, 0, 0, NULL, NULL,
     "do not read the weights to compare their checksums"},
};

static void print_model(const struct weights_source *source)
{
    const struct model_config *c = weights_source_config(source);
    int sparse = 0, full = 0;
    for (int i = 0; i < c->n_layers; i++) {
        sparse += c->is_sparse[i];
        full += c->has_indexer[i];
    }
    printf("%s: %s, %s\n", weights_source_dir(source), weights_source_pack(source) ? "pack" : "vendor folder",
           precision_name(weights_source_precision(source)));
    printf("identity      %s\n", weights_source_identity(source));
    printf("layers        %d: %d dense, %d sparse; %d run their own indexer; %d MTP\n", c->n_layers, c->n_layers - sparse, sparse, full,
           c->n_mtp_layers);
    printf("sizes         hidden %d, vocabulary %d, dense MLP %d, expert MLP %d\n", c->hidden_size, c->vocab_size, c->intermediate_size,
           c->moe_intermediate_size);
    printf("attention     %d heads; ranks %d (query), %d (latent); per head %d nope, %d rope, %d value\n", c->n_heads, c->q_lora_rank,
           c->kv_lora_rank, c->nope_dim, c->rope_dim, c->v_dim);
    printf("indexer       %d heads of %d, top %d positions\n", c->index_heads, c->index_dim, c->index_topk);
    printf("experts       %d a layer, top %d, %d shared\n\n", c->n_experts, c->top_k, c->n_shared_experts);
}

/* The formats that occur in a part, as "int8 f32". */
static void formats_text(const struct part_layout *layout, char out[64])
{
    int used = 0;
    *out = 0;
    for (int f = 0; f < N_WEIGHT_FORMATS; f++)
        for (int i = 0; i < layout->n_tensors; i++)
            if ((int)layout->tensors[i].format == f) {
                used += snprintf(out + used, (size_t)(64 - used), "%s%s", used ? " " : "", format_info((enum weight_format)f)->name);
                break;
            }
}

struct totals {
    uint64_t bytes, dense_bytes, expert_bytes, token_bytes, record_bytes;
};

/* Bytes that one token reads: everything dense, top_k experts of every sparse layer, one row of the embedding. */
static void add_part(struct totals *t, const struct model_config *c, const struct part_layout *layout)
{
    t->bytes += layout->bytes;
    int is_mtp = (layout->kind == PART_DENSE || layout->kind == PART_EXPERTS) && layout->layer >= c->n_layers;
    if (layout->kind == PART_EXPERTS) {
        t->expert_bytes += layout->bytes;
        t->record_bytes = layout->record_bytes > t->record_bytes ? layout->record_bytes : t->record_bytes;
        t->token_bytes += is_mtp ? 0 : (uint64_t)c->top_k * layout->record_bytes;
        return;
    }
    t->dense_bytes += layout->bytes;
    if (layout->kind == PART_EMBEDDING)
        t->token_bytes += (layout->tensors[0].data_bytes + layout->tensors[0].scales_bytes) / (uint64_t)c->vocab_size;
    else
        t->token_bytes += is_mtp ? 0 : layout->bytes;
}

/* One line per part; verifies it when asked. The first damage is the error, after all lines are printed. */
static enum status inspect_parts(struct weights_source *source, int verify, struct error *err)
{
    const struct model_config *c = weights_source_config(source);
    struct totals t = {0};
    enum part_kind kind = PART_EMBEDDING;
    int layer = 0, n_damaged = 0;
    printf("%-14s %15s  %-14s\n", "part", "bytes", "formats");
    do {
        struct part_layout layout;
        struct error damage = {0};
        char name[32], formats[64];
        weights_source_layout(source, kind, layer, &layout);
        add_part(&t, c, &layout);
        part_file_name(name, kind, layer);
        formats_text(&layout, formats);
        printf("%-14s %15llu  %-14s", name, (unsigned long long)layout.bytes, formats);
        fflush(stdout);
        enum status status = verify ? weights_source_verify(source, kind, layer, &damage) : STATUS_OK;
        if (status && !n_damaged++)
            *err = damage;
        printf("%s%s\n", verify ? status ? "  DAMAGED: " : "  verified" : "", status ? damage.text : "");
    } while (part_next(c, &kind, &layer));
    printf("\nexpert record %llu bytes\n", (unsigned long long)t.record_bytes);
    printf("always used   %.3f GB\nexperts       %.3f GB\ntotal         %.3f GB\na token reads %.3f GB (the MTP layer not counted)\n",
           (double)t.dense_bytes / 1e9, (double)t.expert_bytes / 1e9, (double)t.bytes / 1e9, (double)t.token_bytes / 1e9);
    return n_damaged ? err->status : STATUS_OK;
}

static enum status inspect_run(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    const struct inspect_arguments *a = options;
    (void)n_arguments;
    struct weights_source *source;
    enum status status = weights_source_open(&source, arguments[0], err);
    if (status)
        return status;
    print_model(source);
    status = inspect_parts(source, !a->no_verify, err);
    weights_source_close(&source);
    return status;
}

const struct command inspect_command = {
    .name = "inspect",
    .arguments = "DIR",
    .summary = "Show what a pack or a vendor folder holds and verify its checksums.",
    .options = rows,
    .n_options = sizeof rows / sizeof *rows,
    .options_bytes = sizeof(struct inspect_arguments),
    .n_arguments_min = 1,
    .n_arguments_max = 1,
    .run = inspect_run,
};
