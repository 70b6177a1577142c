#include "model/config.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/memory.h"
#include "model/families.h"

enum { CONFIG_BYTES_MAX = 4 << 20, MISSING = -1 };

struct reader {
    const json_t *object;
    const char *file;
    struct error *err;
    enum status status; /* first failure; later reads do nothing */
};

/* A whole number in [min, max]; fallback when the key is absent (MISSING: it must be there). */
static int read_int(struct reader *r, const char *key, int64_t min, int64_t max, int64_t fallback)
{
    int64_t value = 0;
    if (!r->status)
        r->status = json_get_int(r->object, key, min, max, fallback, &value, r->file, r->err);
    return (int)value;
}

static double read_number(struct reader *r, const char *key, double fallback)
{
    double value = fallback;
    if (!r->status)
        r->status = json_get_number(r->object, key, fallback, &value, r->file, r->err);
    return value;
}

static int read_bool(struct reader *r, const char *key, int fallback)
{
    int value = fallback;
    if (!r->status)
        r->status = json_get_bool(r->object, key, fallback, &value, r->file, r->err);
    return value;
}

#define REFUSE(r, ...)                                                                                                                     \
    do {                                                                                                                                   \
        if (!(r)->status)                                                                                                                  \
            (r)->status = error_set((r)->err, STATUS_INVALID, __VA_ARGS__);                                                                \
    } while (0)

/* A key that must have one value if it is there at all: anything else would be another model. */
static void require_text(struct reader *r, const json_t *object, const char *key, const char *only)
{
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value))
        return;
    if (!json_is_string(value) || strcmp(json_string_value(value), only))
        REFUSE(r, "%s: %s must be \"%s\"%s%s", r->file, key, only, json_is_string(value) ? ", not " : "",
               json_is_string(value) ? json_string_value(value) : "");
}

static void require_bool(struct reader *r, const char *key, int only)
{
    if (read_bool(r, key, only) != only)
        REFUSE(r, "%s: %s must be %s for this family", r->file, key, only ? "true" : "false");
}

static void read_sizes(struct reader *r, struct model_config *c)
{
    c->vocab_size = read_int(r, "vocab_size", 1, 1 << 21, MISSING);
    c->hidden_size = read_int(r, "hidden_size", 1, 1 << 16, MISSING);
    c->n_layers = read_int(r, "num_hidden_layers", 1, LAYERS_MAX - 1, MISSING);
    c->n_mtp_layers = read_int(r, "num_nextn_predict_layers", 0, 1, 0);
    c->n_heads = read_int(r, "num_attention_heads", 1, 1024, MISSING);
    c->q_lora_rank = read_int(r, "q_lora_rank", 1, 1 << 16, MISSING);
    c->kv_lora_rank = read_int(r, "kv_lora_rank", 1, 1 << 14, MISSING);
    c->nope_dim = read_int(r, "qk_nope_head_dim", 1, 1 << 12, MISSING);
    c->rope_dim = read_int(r, "qk_rope_head_dim", 2, 1 << 12, MISSING);
    c->v_dim = read_int(r, "v_head_dim", 1, 1 << 12, MISSING);
    c->intermediate_size = read_int(r, "intermediate_size", 1, 1 << 18, MISSING);
    c->max_positions = read_int(r, "max_position_embeddings", 1, 1 << 24, MISSING);
    c->rms_norm_eps = (float)read_number(r, "rms_norm_eps", 1e-5);
    if (c->rope_dim % 2)
        REFUSE(r, "%s: qk_rope_head_dim is %d, it must be even", r->file, c->rope_dim);
    if (!(c->rms_norm_eps > 0 && c->rms_norm_eps < 1))
        REFUSE(r, "%s: rms_norm_eps must lie between 0 and 1", r->file);
    int qk = read_int(r, "qk_head_dim", 1, 1 << 13, c->nope_dim + c->rope_dim);
    if (qk != c->nope_dim + c->rope_dim)
        REFUSE(r, "%s: qk_head_dim is %d, but qk_nope_head_dim + qk_rope_head_dim is %d", r->file, qk, c->nope_dim + c->rope_dim);
    require_bool(r, "attention_bias", 0);
    require_bool(r, "tie_word_embeddings", 0);
    require_text(r, r->object, "hidden_act", "silu");
}

static void read_rope(struct reader *r, struct model_config *c)
{
    const json_t *parameters = json_object_get(r->object, "rope_parameters");
    c->rope_theta = read_number(r, "rope_theta", 10000.0); /* the place older configs use */
    if (parameters && !json_is_null(parameters)) {
        struct reader inner = {parameters, r->file, r->err, r->status};
        if (!json_is_object(parameters))
            REFUSE(r, "%s: rope_parameters must be an object", r->file);
        c->rope_theta = read_number(&inner, "rope_theta", c->rope_theta);
        require_text(&inner, parameters, "rope_type", "default");
        if (!r->status)
            r->status = inner.status;
    }
    const json_t *scaling = json_object_get(r->object, "rope_scaling");
    if (scaling && !json_is_null(scaling))
        REFUSE(r, "%s: rope_scaling is set; this family has no rope scaling", r->file);
    if (!(c->rope_theta >= 1 && c->rope_theta <= 1e12))
        REFUSE(r, "%s: rope_theta must lie between 1 and 1e12", r->file);
    require_bool(r, "rope_interleave", 1);
    require_bool(r, "indexer_rope_interleave", 1); /* an early revision lacked the key: true (spec 1.3) */
}

static void read_experts(struct reader *r, struct model_config *c)
{
    /* "num_experts": some transformers versions injected a bogus one; n_routed_experts is the truth. */
    c->n_experts = read_int(r, "n_routed_experts", 1, EXPERTS_MAX, MISSING);
    c->top_k = read_int(r, "num_experts_per_tok", 1, TOP_K_MAX, MISSING);
    c->moe_intermediate_size = read_int(r, "moe_intermediate_size", 1, 1 << 18, MISSING);
    c->n_shared_experts = read_int(r, "n_shared_experts", 0, 64, 1);
    c->n_group = read_int(r, "n_group", 1, EXPERTS_MAX, 1);
    c->topk_group = read_int(r, "topk_group", 1, EXPERTS_MAX, 1);
    c->norm_topk_prob = read_bool(r, "norm_topk_prob", 1);
    c->routed_scaling_factor = (float)read_number(r, "routed_scaling_factor", 1.0);
    if (!(c->routed_scaling_factor > 0 && c->routed_scaling_factor <= 1e6f))
        REFUSE(r, "%s: routed_scaling_factor must lie between 0 and 1e6", r->file);
    require_text(r, r->object, "scoring_func", "sigmoid");
    require_text(r, r->object, "topk_method", "noaux_tc");
    if (r->status)
        return;
    if (c->top_k > c->n_experts)
        REFUSE(r, "%s: num_experts_per_tok is %d, but there are only %d routed experts", r->file, c->top_k, c->n_experts);
    if (c->n_experts % c->n_group)
        REFUSE(r, "%s: n_group %d does not divide n_routed_experts %d", r->file, c->n_group, c->n_experts);
    if (c->topk_group > c->n_group)
        REFUSE(r, "%s: topk_group is %d, but n_group is %d", r->file, c->topk_group, c->n_group);
    if (!r->status && c->n_experts / c->n_group * c->topk_group < c->top_k)
        REFUSE(r, "%s: topk_group %d leaves fewer experts than num_experts_per_tok %d", r->file, c->topk_group, c->top_k);
    if (!r->status && c->n_group > 1 && c->n_experts / c->n_group < 2)
        REFUSE(r, "%s: n_group %d leaves fewer than two experts in a group", r->file, c->n_group);
}

/* A per-layer list of two words, e.g. mlp_layer_types; returns 0 when the key is absent. */
static int read_layer_list(struct reader *r, const struct model_config *c, const char *key, const char *word0, const char *word1, unsigned char *out)
{
    const json_t *list = json_object_get(r->object, key);
    if (r->status || !list || json_is_null(list))
        return 0;
    if (!json_is_array(list) || (int)json_array_size(list) != c->n_layers) {
        REFUSE(r, "%s: %s must be a list of num_hidden_layers = %d words", r->file, key, c->n_layers);
        return 0;
    }
    for (int i = 0; i < c->n_layers; i++) {
        const char *word = json_string_value(json_array_get(list, (size_t)i));
        if (!word || (strcmp(word, word0) && strcmp(word, word1))) {
            REFUSE(r, "%s: %s[%d] must be \"%s\" or \"%s\"", r->file, key, i, word0, word1);
            return 0;
        }
        out[i] = !strcmp(word, word1);
    }
    return 1;
}

/* index_topk_pattern: a string or list of F (full) and S (shared). */
static int read_pattern(struct reader *r, struct model_config *c)
{
    const json_t *pattern = json_object_get(r->object, "index_topk_pattern");
    if (r->status || !pattern || json_is_null(pattern))
        return 0;
    size_t n = json_is_string(pattern) ? json_string_length(pattern) : json_array_size(pattern);
    if (n != (size_t)c->n_layers) {
        REFUSE(r, "%s: index_topk_pattern has %zu entries for %d layers", r->file, n, c->n_layers);
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        const char *word = json_string_value(json_is_string(pattern) ? pattern : json_array_get(pattern, i));
        char letter = !word ? 0 : json_is_string(pattern) ? word[i] : strlen(word) == 1 ? word[0] : 0;
        if (letter != 'F' && letter != 'S') {
            REFUSE(r, "%s: index_topk_pattern[%zu] must be F or S", r->file, i);
            return 0;
        }
        c->has_indexer[i] = letter == 'F';
    }
    return 1;
}

static void read_layers(struct reader *r, struct model_config *c)
{
    int first_dense = read_int(r, "first_k_dense_replace", 0, LAYERS_MAX, 0);
    c->index_heads = read_int(r, "index_n_heads", 1, 1024, MISSING);
    c->index_dim = read_int(r, "index_head_dim", 1, 1 << 12, MISSING);
    c->index_topk = read_int(r, "index_topk", 1, 1 << 20, MISSING);
    int frequency = read_int(r, "index_topk_freq", 1, LAYERS_MAX, 1), offset = read_int(r, "index_skip_topk_offset", 0, LAYERS_MAX, 2);
    c->index_share_for_mtp = read_bool(r, "index_share_for_mtp_iteration", 0);
    if (r->status)
        return;
    if (c->index_dim < c->rope_dim)
        REFUSE(r, "%s: index_head_dim %d is smaller than qk_rope_head_dim %d", r->file, c->index_dim, c->rope_dim);
    if (!read_layer_list(r, c, "mlp_layer_types", "dense", "sparse", c->is_sparse))
        for (int i = 0; i < c->n_layers; i++)
            c->is_sparse[i] = i >= first_dense;
    /* The explicit schedule wins over the pattern, the pattern over frequency and offset (spec 1.3). */
    if (!read_layer_list(r, c, "indexer_types", "shared", "full", c->has_indexer) && !read_pattern(r, c))
        for (int i = 0; i < c->n_layers; i++)
            c->has_indexer[i] = (i - offset + 1 > 0 ? i - offset + 1 : 0) % frequency == 0;
    if (!c->has_indexer[0])
        REFUSE(r, "%s: layer 0 must run its own indexer, there is nothing below it to share", r->file);
    c->is_sparse[c->n_layers] = c->has_indexer[c->n_layers] = 1; /* the MTP layer */
}

static void read_eos(struct reader *r, struct model_config *c)
{
    const json_t *eos = json_object_get(r->object, "eos_token_id");
    if (r->status || !eos || json_is_null(eos))
        return;
    size_t n = json_is_array(eos) ? json_array_size(eos) : 1;
    if (n > EOS_IDS_MAX) {
        REFUSE(r, "%s: eos_token_id lists %zu ids, at most %d are possible", r->file, n, EOS_IDS_MAX);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(eos) ? json_array_get(eos, i) : eos;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= c->vocab_size) {
            REFUSE(r, "%s: eos_token_id must be ids below vocab_size %d", r->file, c->vocab_size);
            return;
        }
        c->eos_ids[c->n_eos_ids++] = (int)json_integer_value(id);
    }
}

static enum status read_object(struct model_config *config, const json_t *object, const char *file, struct error *err)
{
    struct reader r = {object, file, err, STATUS_OK};
    *config = (struct model_config){0};
    if (!json_is_object(object))
        return error_set(err, STATUS_INVALID, "%s: not a JSON object", file);
    const char *type = json_string_value(json_object_get(object, "model_type"));
    config->family = type ? model_family_find(type) : NULL;
    if (!config->family) {
        char *supported = model_families_supported();
        error_set(err, STATUS_UNSUPPORTED, "%s: model_type %s%s is not supported; supported: %s", file, type ? "" : "is missing or",
                  type ? type : "", supported);
        free(supported);
        return STATUS_UNSUPPORTED;
    }
    read_sizes(&r, config);
    read_rope(&r, config);
    read_experts(&r, config);
    read_layers(&r, config);
    read_eos(&r, config);
    return r.status;
}

enum status model_config_parse(struct model_config *config, const char *text, size_t length, const char *file, struct error *err)
{
    json_error_t where;
    json_t *object = json_loadb(text, length, JSON_REJECT_DUPLICATES, &where);
    if (!object)
        return error_set(err, STATUS_CORRUPT, "%s: line %d: %s", file, where.line, where.text);
    enum status status = read_object(config, object, file, err);
    json_decref(object);
    return status;
}

enum status model_config_read(struct model_config *config, const char *dir, struct error *err)
{
    char *path = xasprintf("%s/config.json", dir);
    json_t *object = NULL;
    enum status status = json_read_file(&object, path, CONFIG_BYTES_MAX, err);
    if (!status)
        status = read_object(config, object, path, err);
    json_decref(object);
    free(path);
    return status;
}
