/* A conversation with a model in this process: renders, tokenizes, generates and prints. What `hearth run` and `hearth chat` share. */
#ifndef HEARTH_CLI_CONVERSATION_H
#define HEARTH_CLI_CONVERSATION_H

#include <jansson.h>

#include "cli/model_options.h"
#include "cli/routing_trace.h"
#include "common/memory.h"
#include "model/sampler.h"
#include "model/tokenizer.h"

struct conversation_options {
    struct cli_model_options model;
    const char *system, *effort;
    const char *trace; /* file to record the routing in (cli/routing_trace.h), or NULL */
    int no_think;
    int64_t max_tokens, top_k, seed;
    double temperature, top_p, min_p; /* negative: the model's generation_config.json decides */
};

struct conversation {
    const struct conversation_options *options;
    struct routing_recorder recorder;
    struct cli_model loaded;
    struct model *model; /* of it */
    struct tokenizer *tokenizer;
    struct sampler_params sampling;
    int stop_ids[EOS_IDS_MAX * 2], n_stop_ids;
    json_t *messages;
    struct sequence_state sequence;
    struct id_list ids; /* tokens at the positions of the sequence */
};

/* Opens model and tokenizer, starts with the system message if there is one. */
enum status conversation_open(struct conversation *conversation, const char *dir, const struct conversation_options *options,
                              struct error *err);
void conversation_close(struct conversation *conversation);

/* Adds the question, streams the answer to stdout (reasoning dimmed on a terminal) and one line of figures to stderr, adds the answer.
 * Ctrl-C ends the answer early, and so does a closed output. Prefixes that the sequence already holds are not computed again. */
enum status conversation_ask(struct conversation *conversation, const char *question, struct error *err);

#define CONVERSATION_OPTION_ROWS                                                                                                           \
    {"system", OPTION_TEXT, offsetof(struct conversation_options, system), .metavar = "TEXT", .help = "system message"},                   \
        {"no-think", OPTION_FLAG, offsetof(struct conversation_options, no_think), .help = "answer without reasoning"},                    \
        {"effort",                                                                                                                         \
         OPTION_CHOICE,                                                                                                                    \
         offsetof(struct conversation_options, effort),                                                                                    \
         "max",                                                                                                                            \
         .choices = "max|high",                                                                                                            \
         .metavar = "LEVEL",                                                                                                               \
         .help = "reasoning effort"},                                                                                                      \
        {"max-tokens",                                                                                                                     \
         OPTION_INT,                                                                                                                       \
         offsetof(struct conversation_options, max_tokens),                                                                                \
         "2048",                                                                                                                           \
         1,                                                                                                                                \
         1 << 24,                                                                                                                          \
         .metavar = "N",                                                                                                                   \
         .help = "longest answer"},                                                                                                        \
        {"temperature",                                                                                                                    \
         OPTION_NUMBER,                                                                                                                    \
         offsetof(struct conversation_options, temperature),                                                                               \
         "-1",                                                                                                                             \
         -1,                                                                                                                               \
         100,                                                                                                                              \
         .metavar = "T",                                                                                                                   \
         .help = "0: always the likeliest token; -1: as generation_config.json says"},                                                     \
        {"top-p", OPTION_NUMBER,  offsetof(struct conversation_options, top_p),         "-1", -1,                                          \
         1,       .metavar = "P", .help = "nucleus; -1: as generation_config.json says"},                                                  \
        {"top-k", OPTION_INT,     offsetof(struct conversation_options, top_k),        "-1", -1,                                           \
         1 << 21, .metavar = "K", .help = "0: off; -1: as generation_config.json says"},                                                   \
        {"min-p", OPTION_NUMBER,  offsetof(struct conversation_options, min_p),        "-1", -1,                                           \
         1,       .metavar = "P", .help = "0: off; -1: as generation_config.json says"},                                                   \
        {"seed", OPTION_INT,     offsetof(struct conversation_options, seed),  "0", 0,                                                     \
         9e15,   .metavar = "N", .help = "the same seed gives the same answer"},                                                           \
        CLI_MODEL_OPTION_ROWS(struct conversation_options, model)

#endif
