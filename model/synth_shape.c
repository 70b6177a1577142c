#include "model/synth_shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/memory.h"

/* Skews: what makes a least-recently-used cache of a quarter of a layer's experts hit 40 to 50 % of the time, of half of them 75 %. The
 * same bias weighs more where more experts compete: 0.12 with 256 experts would be 92 % at a quarter. */
static const struct synth_shape shapes[] = {
    /* GLM-5.2 as it is: docs/spec/glm_moe_dsa.md, section 1.1. */
    {"glm-5.2", 154880, 24, 6144, 78, 3, 1, 64, 2048, 512, 192, 64, 256, 12288, 2048, 256, 8, 32, 128, 2048, 4, 3, 1048576, 8000000, 0.05},
    /* Small enough for any disk, with records of 3.3 MB: what the benchmarks of experts on disk use. */
    {"bench", 8192, 0, 2048, 12, 1, 1, 16, 512, 256, 64, 32, 64, 4096, 1024, 64, 8, 8, 64, 512, 1, 3, 65536, 1000000, 0.12},
    /* The shape of models/kindling. */
    {"kindling", 3712, 76, 256, 10, 3, 1, 4, 128, 64, 48, 16, 64, 512, 64, 32, 4, 4, 32, 64, 4, 3, 8192, 10000, 0.12},
};

const struct synth_shape *synth_shape_find(const char *name)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (!strcmp(shapes[i].name, name))
            return &shapes[i];
    return NULL;
}

/* The family's added tokens in the order of their ids; those from N_SPECIAL on are ordinary text to the sampler. */
static const char *const added_tokens[] = {
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|begin_of_image|>",
    "<|end_of_image|>",
    "<|begin_of_video|>",
    "<|end_of_video|>",
    "<|begin_of_audio|>",
    "<|end_of_audio|>",
    "<|begin_of_transcription|>",
    "<|end_of_transcription|>",
    "<|code_prefix|>",
    "<|code_middle|>",
    "<|code_suffix|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "/nothink",
    "<|begin_of_box|>",
    "<|end_of_box|>",
    "<|image|>",
    "<|video|>",
};
enum {
    N_BYTES = 256,
    N_ADDED = sizeof added_tokens / sizeof *added_tokens,
    N_SPECIAL = 21,
    ID_ENDOFTEXT = 0,
    ID_USER = 7,
    ID_OBSERVATION = 9
};

int synth_shape_vocab_min(const struct synth_shape *shape)
{
    return N_BYTES + N_ADDED + shape->n_pad_rows;
}

static int first_added_id(const struct synth_shape *s)
{
    return s->vocab_size - s->n_pad_rows - N_ADDED;
}

static void append(struct text *text, char *owned)
{
    text_append_string(text, owned);
    free(owned);
}

/* "a","a","b" ... of two words, one per layer. */
static void append_words(struct text *text, const char *key, int n, const char *const *words)
{
    append(text, xasprintf(" \"%s\": [", key));
    for (int i = 0; i < n; i++)
        append(text, xasprintf("%s\"%s\"", i ? ", " : "", words[i]));
    text_append_string(text, "],\n");
}

static void append_layers(struct text *text, const struct synth_shape *s)
{
    const char **words = xcalloc((size_t)s->n_layers + 1, sizeof *words);
    for (int i = 0; i < s->n_layers; i++)
        words[i] = i < s->n_dense_layers ? "dense" : "sparse";
    append_words(text, "mlp_layer_types", s->n_layers, words);
    for (int i = 0; i < s->n_layers; i++) {
        int after = i - s->index_offset + 1;
        words[i] = (after > 0 ? after : 0) % s->index_frequency ? "shared" : "full";
    }
    append_words(text, "indexer_types", s->n_layers, words);
    free(words);
}

static char *eos_ids(const struct synth_shape *s)
{
    int first = first_added_id(s);
    return xasprintf(" \"eos_token_id\": [%d, %d, %d],\n \"pad_token_id\": %d", first + ID_ENDOFTEXT, first + ID_USER,
                     first + ID_OBSERVATION, first + ID_ENDOFTEXT);
}

char *synth_config_text(const struct synth_shape *s)
{
    struct text text = {0};
    text_append_string(&text,
                       "{\n \"architectures\": [\"GlmMoeDsaForCausalLM\"],\n \"model_type\": \"glm_moe_dsa\",\n \"hidden_act\": \"silu\",\n"
                       " \"attention_bias\": false,\n \"tie_word_embeddings\": false,\n \"rms_norm_eps\": 1e-05,\n"
                       " \"rope_interleave\": true,\n \"indexer_rope_interleave\": true,\n \"index_share_for_mtp_iteration\": true,\n"
                       " \"n_group\": 1,\n \"topk_group\": 1,\n \"n_shared_experts\": 1,\n \"norm_topk_prob\": true,\n"
                       " \"scoring_func\": \"sigmoid\",\n \"topk_method\": \"noaux_tc\",\n \"routed_scaling_factor\": 2.5,\n");
    const struct {
        const char *key;
        int value;
    } sizes[] = {
        {"vocab_size", s->vocab_size},
        {"hidden_size", s->hidden_size},
        {"num_hidden_layers", s->n_layers},
        {"first_k_dense_replace", s->n_dense_layers},
        {"num_nextn_predict_layers", s->n_mtp_layers},
        {"num_attention_heads", s->n_heads},
        {"num_key_value_heads", s->n_heads},
        {"q_lora_rank", s->q_lora_rank},
        {"kv_lora_rank", s->kv_lora_rank},
        {"qk_nope_head_dim", s->nope_dim},
        {"qk_rope_head_dim", s->rope_dim},
        {"v_head_dim", s->v_dim},
        {"intermediate_size", s->intermediate_size},
        {"moe_intermediate_size", s->moe_intermediate_size},
        {"n_routed_experts", s->n_experts},
        {"num_experts_per_tok", s->top_k},
        {"index_n_heads", s->index_heads},
        {"index_head_dim", s->index_dim},
        {"index_topk", s->index_topk},
        {"index_topk_freq", s->index_frequency},
        {"index_skip_topk_offset", s->index_offset},
        {"max_position_embeddings", s->max_positions},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        append(&text, xasprintf(" \"%s\": %d,\n", sizes[i].key, sizes[i].value));
    append(&text, xasprintf(" \"rope_parameters\": {\"rope_theta\": %lld, \"rope_type\": \"default\"},\n", (long long)s->rope_theta));
    append_layers(&text, s);
    append(&text, eos_ids(s));
    text_append_string(&text, "\n}\n");
    return text.bytes;
}

char *synth_generation_text(const struct synth_shape *s)
{
    char *ids = eos_ids(s), *text = xasprintf("{\n%s,\n \"temperature\": 1.0,\n \"top_p\": 0.95\n}\n", ids);
    free(ids);
    return text;
}

/* --- tokenizer.json --- */

/* The printable character that stands for a byte in the vocabulary (model/tokenizer_file.c has the way back), as JSON. */
static void append_byte(struct text *text, int byte, int *next)
{
    int is_itself = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    append(text, xasprintf("\"\\u%04x\"", is_itself ? byte : (*next)++));
}

/* A made-up word with a space in front, another one for every i: letters, three or more. */
static void append_word(struct text *text, int i)
{
    char letters[16];
    int n = sizeof letters;
    letters[--n] = 0;
    for (int k = 0; i || k < 3; i /= 26, k++)
        letters[--n] = (char)('a' + i % 26);
    append(text, xasprintf("\"\\u0120%s\"", letters + n));
}

/* No merges: a piece of text is a made-up word as a whole (ignore_merges), or it is its bytes. So every id can be sampled and printed. */
static void append_vocabulary(struct text *text, const struct synth_shape *s)
{
    int next = 0x100;
    for (int id = 0; id < first_added_id(s); id++) {
        text_append_string(text, id ? ",\n" : "\n");
        if (id < N_BYTES)
            append_byte(text, id, &next);
        else
            append_word(text, id - N_BYTES);
        append(text, xasprintf(": %d", id));
    }
}

char *synth_tokenizer_text(const struct synth_shape *s)
{
    CHECK(s->vocab_size >= synth_shape_vocab_min(s));
    struct text text = {0};
    text_append_string(&text,
                       "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"normalizer\": null, \"post_processor\": null,\n"
                       "\"added_tokens\": [");
    for (int i = 0; i < N_ADDED; i++)
        append(&text, xasprintf("%s\n{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                                "\"normalized\": false, \"special\": %s}",
                                i ? "," : "", first_added_id(s) + i, added_tokens[i], i < N_SPECIAL ? "true" : "false"));
    text_append_string(&text,
                       "],\n\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "
                       "\"[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s+\"}, "
                       "\"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                       "\"trim_offsets\": true, \"use_regex\": false}]},\n"
                       "\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true},\n"
                       "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null, "
                       "\"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": true, "
                       "\"merges\": [], \"vocab\": {");
    append_vocabulary(&text, s);
    text_append_string(&text, "}}}\n");
    return text.bytes;
}
