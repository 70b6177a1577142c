#include "model/generation_config.h"

#include "common/json.h"
#include "model/token_table.h"

static enum status add_eos(struct generation_config *config, const json_t *id, const char *path, struct error *err)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= TOKEN_IDS_MAX)
        return error_set(err, STATUS_INVALID, "%s: eos_token_id must be a token id or a list of them", path);
    if (config->n_eos_ids == GENERATION_EOS_MAX)
        return error_set(err, STATUS_INVALID, "%s: eos_token_id has more than %d ids", path, GENERATION_EOS_MAX);
    config->eos_ids[config->n_eos_ids++] = (int)json_integer_value(id);
    return STATUS_OK;
}

static enum status read_eos(struct generation_config *config, const json_t *ids, const char *path, struct error *err)
{
    enum status status = STATUS_OK;
    if (!ids || json_is_null(ids))
        return STATUS_OK;
    if (!json_is_array(ids))
        return add_eos(config, ids, path, err);
    for (size_t i = 0; i < json_array_size(ids) && !status; i++)
        status = add_eos(config, json_array_get(ids, i), path, err);
    return status;
}

static enum status read_sampling(struct sampler_params *sampling, const json_t *root, const char *path, struct error *err)
{
    int64_t top_k;
    enum status status = json_get_int(root, "top_k", 0, TOKEN_IDS_MAX, 0, &top_k, path, err);
    if (status)
        return status;
    sampling->top_k = (int)top_k;
    const struct {
        const char *key;
        double *value;
    } rows[] = {{"temperature", &sampling->temperature},
                {"top_p", &sampling->top_p},
                {"min_p", &sampling->min_p},
                {"repetition_penalty", &sampling->repetition_penalty}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows && !status; i++)
        status = json_get_number(root, rows[i].key, *rows[i].value, rows[i].value, path, err);
    if (!status && sampler_params_check(sampling, err))
        status = error_wrap(err, "%s", path);
    return status;
}

enum status generation_config_read(struct generation_config *config, const char *path, struct error *err)
{
    *config = (struct generation_config){.sampling = sampler_params_default};
    json_t *root;
    enum status status = json_read_file(&root, path, 1 << 20, err);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    if (status)
        return status;
    if (!json_is_object(root))
        status = error_set(err, STATUS_INVALID, "%s: must be an object", path);
    if (!status)
        status = read_eos(config, json_object_get(root, "eos_token_id"), path, err);
    if (!status)
        status = read_sampling(&config->sampling, root, path, err);
    json_decref(root);
    return status;
}
