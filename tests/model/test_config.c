/* Goal: config.json is read with the defaults of spec section 1.3, and an inconsistent value is refused by a sentence that names it.
 * Method: a valid configuration, changed in one place per line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "model/config.h"

static const char valid[] =
    "{\"model_type\":\"glm_moe_dsa\",\"vocab_size\":200,\"hidden_size\":160,\"num_hidden_layers\":12,\"num_nextn_predict_layers\":1,"
    "\"num_attention_heads\":3,\"q_lora_rank\":136,\"kv_lora_rank\":32,\"qk_nope_head_dim\":40,\"qk_rope_head_dim\":16,\"v_head_dim\":48,"
    "\"intermediate_size\":264,\"moe_intermediate_size\":72,\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"first_k_dense_replace\":3,"
    "\"index_n_heads\":6,\"index_head_dim\":32,\"index_topk\":8,\"rope_parameters\":{\"rope_theta\":8000000.0},"
    "\"max_position_embeddings\":1024,\"eos_token_id\":7}";

/* The valid object with `change` laid over it (an object; a null removes the key). */
static enum status parse_changed(struct model_config *config, const char *change, struct error *err)
{
    json_error_t where;
    json_t *object = json_loads(valid, 0, &where), *changes = json_loads(change, 0, &where), *value;
    assert_non_null(object);
    assert_non_null(changes);
    const char *key;
    json_object_foreach(changes, key, value)
    {
        if (json_is_string(value) && !strcmp(json_string_value(value), "REMOVE"))
            json_object_del(object, key);
        else
            json_object_set(object, key, value);
    }
    char *text = json_dumps(object, 0);
    enum status status = model_config_parse(config, text, strlen(text), "config.json", err);
    free(text);
    json_decref(object);
    json_decref(changes);
    return status;
}

static void accept(struct model_config *config, const char *change)
{
    struct error err = {0};
    if (parse_changed(config, change, &err))
        fail_msg("%s refused: %s", change, err.text);
}

static void full_layers(const struct model_config *config, char *out)
{
    for (int i = 0; i < config->n_layers; i++)
        out[i] = config->has_indexer[i] ? 'F' : 'S';
    out[config->n_layers] = 0;
}

static void missing_keys_get_the_defaults_of_the_spec(void **state)
{
    (void)state;
    struct model_config c;
    char layers[64];
    accept(&c, "{}");
    full_layers(&c, layers);
    assert_string_equal(layers, "FFFFFFFFFFFF"); /* no IndexShare keys: every layer runs its own indexer */
    assert_int_equal(c.is_sparse[2], 0);
    assert_int_equal(c.is_sparse[3], 1);
    assert_true(c.norm_topk_prob && c.n_group == 1 && c.n_shared_experts == 1 && c.rms_norm_eps == 1e-5f);
    assert_int_equal(c.index_share_for_mtp, 0);
    assert_true(c.has_indexer[12] && c.is_sparse[12]); /* the MTP layer */
    assert_true(c.n_eos_ids == 1 && c.eos_ids[0] == 7 && c.rope_theta == 8e6);
}

static void index_share_schedule_follows_the_most_explicit_key(void **state)
{
    (void)state;
    struct model_config c;
    char layers[64];
    accept(&c, "{\"index_topk_freq\":4,\"index_skip_topk_offset\":3}");
    full_layers(&c, layers);
    assert_string_equal(layers, "FFFSSSFSSSFS"); /* 0, 1, 2, 6, 10: the released schedule */
    accept(&c, "{\"index_topk_freq\":4}");
    full_layers(&c, layers);
    assert_string_equal(layers, "FFSSSFSSSFSS"); /* offset 2 when the key is missing */
    accept(&c, "{\"index_topk_freq\":4,\"index_topk_pattern\":\"FSFFSSFSSSFS\"}");
    full_layers(&c, layers);
    assert_string_equal(layers, "FSFFSSFSSSFS");
    accept(&c, "{\"index_topk_pattern\":[\"F\",\"S\",\"F\",\"F\",\"S\",\"S\",\"F\",\"S\",\"S\",\"S\",\"F\",\"S\"]}");
    full_layers(&c, layers);
    assert_string_equal(layers, "FSFFSSFSSSFS");
    accept(&c, "{\"index_topk_pattern\":\"FSFFSSFSSSFS\",\"indexer_types\":[\"full\",\"shared\",\"shared\",\"shared\",\"full\",\"shared\",\"shared\","
               "\"shared\",\"full\",\"shared\",\"shared\",\"shared\"]}");
    full_layers(&c, layers);
    assert_string_equal(layers, "FSSSFSSSFSSS");
}

static void older_configs_are_understood(void **state)
{
    (void)state;
    struct model_config c;
    accept(&c, "{\"rope_parameters\":\"REMOVE\",\"rope_theta\":1000000}");
    assert_true(c.rope_theta == 1e6);
    accept(&c, "{\"num_experts\":256,\"head_dim\":192,\"num_key_value_heads\":64,\"rope_scaling\":null,\"index_topk_pattern\":null}");
    assert_int_equal(c.n_experts, 8); /* a bogus num_experts that some transformers versions injected */
    assert_int_equal(c.rope_dim, 16); /* never head_dim */
}

static void inconsistent_values_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{\"hidden_size\":0}", "hidden_size"},
        {"{\"hidden_size\":-5}", "hidden_size"},
        {"{\"hidden_size\":\"160\"}", "hidden_size"},
        {"{\"hidden_size\":\"REMOVE\"}", "hidden_size is missing"},
        {"{\"num_hidden_layers\":1000000000}", "num_hidden_layers"},
        {"{\"num_nextn_predict_layers\":2}", "num_nextn_predict_layers"},
        {"{\"vocab_size\":4294967297}", "vocab_size"},
        {"{\"n_routed_experts\":0}", "n_routed_experts"},
        {"{\"num_experts_per_tok\":9}", "num_experts_per_tok"},
        {"{\"n_group\":3}", "n_group"},
        {"{\"n_group\":4,\"topk_group\":5}", "topk_group"},
        {"{\"n_group\":8,\"topk_group\":2}", "n_group"},
        {"{\"n_group\":4,\"topk_group\":1,\"num_experts_per_tok\":3}", "topk_group"},
        {"{\"qk_rope_head_dim\":15}", "qk_rope_head_dim"},
        {"{\"qk_head_dim\":60}", "qk_head_dim"},
        {"{\"index_head_dim\":8}", "index_head_dim"},
        {"{\"index_topk\":0}", "index_topk"},
        {"{\"index_topk_pattern\":\"SFFFFFFFFFFF\"}", "layer 0"},
        {"{\"index_topk_pattern\":\"FF\"}", "index_topk_pattern"},
        {"{\"index_topk_pattern\":\"FXFFFFFFFFFF\"}", "index_topk_pattern[1]"},
        {"{\"index_topk_pattern\":[\"F\",\"S\",\"Full\",\"F\",\"F\",\"F\",\"F\",\"F\",\"F\",\"F\",\"F\",\"F\"]}", "index_topk_pattern[2]"},
        {"{\"index_topk_pattern\":[\"F\",\"S\",\"S\",\"\",\"F\",\"F\",\"F\",\"F\",\"F\",\"F\",\"F\",\"F\"]}", "index_topk_pattern[3]"},
        {"{\"indexer_types\":[\"full\"]}", "indexer_types"},
        {"{\"mlp_layer_types\":[1,2,3,4,5,6,7,8,9,10,11,12]}", "mlp_layer_types[0]"},
        {"{\"rms_norm_eps\":0}", "rms_norm_eps"},
        {"{\"rms_norm_eps\":\"small\"}", "rms_norm_eps"},
        {"{\"routed_scaling_factor\":0}", "routed_scaling_factor"},
        {"{\"routed_scaling_factor\":1e39}", "routed_scaling_factor"},
        {"{\"rope_parameters\":{\"rope_theta\":0}}", "rope_theta"},
        {"{\"rope_parameters\":{\"rope_theta\":10000,\"rope_type\":\"yarn\"}}", "rope_type"},
        {"{\"rope_parameters\":[]}", "rope_parameters"},
        {"{\"rope_scaling\":{\"factor\":2}}", "rope_scaling"},
        {"{\"rope_interleave\":false}", "rope_interleave"},
        {"{\"indexer_rope_interleave\":false}", "indexer_rope_interleave"},
        {"{\"attention_bias\":true}", "attention_bias"},
        {"{\"tie_word_embeddings\":true}", "tie_word_embeddings"},
        {"{\"hidden_act\":\"gelu\"}", "hidden_act"},
        {"{\"scoring_func\":\"softmax\"}", "scoring_func"},
        {"{\"norm_topk_prob\":1}", "norm_topk_prob"},
        {"{\"eos_token_id\":200}", "eos_token_id"},
        {"{\"eos_token_id\":[1,\"2\"]}", "eos_token_id"},
        {"{\"model_type\":\"llama\"}", "llama"},
        {"{\"model_type\":\"REMOVE\"}", "model_type"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config c;
        struct error err = {0};
        if (!parse_changed(&c, cases[i][0], &err))
            fail_msg("%s was accepted", cases[i][0]);
        if (!strstr(err.text, cases[i][1]) || !strstr(err.text, "config.json"))
            fail_msg("%s: the sentence lacks '%s' or the file: %s", cases[i][0], cases[i][1], err.text);
    }
}

static void damaged_text_is_an_error_and_never_a_crash(void **state)
{
    (void)state;
    struct model_config c;
    struct error err;
    char text[sizeof valid];
    unsigned random = 1;
    for (int i = 0; i < 20000; i++) {
        memcpy(text, valid, sizeof valid);
        size_t length = sizeof valid - 1;
        random = random * 1664525u + 1013904223u;
        text[(random >> 8) % length] = (char)(random >> 3);
        if (random & 4)
            length = (random >> 12) % length;
        err.text[0] = 0;
        if (model_config_parse(&c, text, length, "config.json", &err))
            assert_true(strlen(err.text) > 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_keys_get_the_defaults_of_the_spec),
        cmocka_unit_test(index_share_schedule_follows_the_most_explicit_key),
        cmocka_unit_test(older_configs_are_understood),
        cmocka_unit_test(inconsistent_values_are_refused_by_name),
        cmocka_unit_test(damaged_text_is_an_error_and_never_a_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
