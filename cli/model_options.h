/* The options that every command which runs a model has in common. */
#ifndef HEARTH_CLI_MODEL_OPTIONS_H
#define HEARTH_CLI_MODEL_OPTIONS_H

#include "common/options.h"
#include "model/model.h"
#include "node/expert_options.h"
#include "node/expert_stats.h"

struct cli_model_options {
    const char *dir; /* where the command takes the folder as an option */
    const char *isa;
    int64_t threads, context, chunk, memory;
    struct expert_options experts;
};

struct expert_store;

/* A model in this process; experts that do not fit into its memory come from the drive. */
struct cli_model {
    struct model *model;
    struct expert_store *store; /* NULL: all experts are in RAM */
};

/* A build without the network has no expert store either. */
#ifdef HEARTH_NETWORK
#define CLI_EXPERT_OPTION_ROWS(type, member) EXPERT_OPTION_ROWS(type, member.experts),
#else
#define CLI_EXPERT_OPTION_ROWS(type, member)
#endif

/* Rows for a member of a command's options struct. */
#define CLI_MODEL_OPTION_ROWS(type, member)                                                                                                \
    {"threads", OPTION_INT, offsetof(type, member.threads), "0", 0, 256, .metavar = "N", .help = "threads; 0: one per core"},              \
        {"context",                                                                                                                        \
         OPTION_INT,                                                                                                                       \
         offsetof(type, member.context),                                                                                                   \
         "0",                                                                                                                              \
         0,                                                                                                                                \
         1 << 24,                                                                                                                          \
         .metavar = "N",                                                                                                                   \
         .help = "positions to keep memory for; 0: 8192 or what the model was made for"},                                                  \
        {"chunk",                                                                                                                          \
         OPTION_INT,                                                                                                                       \
         offsetof(type, member.chunk),                                                                                                     \
         "0",                                                                                                                              \
         0,                                                                                                                                \
         4096,                                                                                                                             \
         .metavar = "N",                                                                                                                   \
         .help = "rows that go through a layer together; 0: up to 2048, as the memory allows and the measured drives make it pay"},                                                                          \
        {"memory",                                                                                                                         \
         OPTION_SIZE,                                                                                                                      \
         offsetof(type, member.memory),                                                                                                    \
         "0",                                                                                                                              \
         0,                                                                                                                                \
         1e15,                                                                                                                             \
         .metavar = "SIZE",                                                                                                                \
         .help = "memory limit, e.g. 12G; experts that do not fit stream from the drive; 0: nine tenths of what is free"},                                                                               \
        CLI_EXPERT_OPTION_ROWS(type, member)                                                                                               \
    {                                                                                                                                      \
        "isa", OPTION_CHOICE, offsetof(type, member.isa), "auto", .choices = "auto|scalar|avx2|avx512", .metavar = "ISA",                  \
                                                                  .help = "instruction set of the kernels; results do not depend on it"    \
    }

/* observer: or NULL; borrowed until the model is closed. */
enum status cli_model_open(struct cli_model *model, const char *dir, const struct cli_model_options *options, const struct layer_observer *observer,
                           struct error *err);
void cli_model_close(struct cli_model *model);

/* What its expert store has done. 0: it has none. */
int cli_model_experts(const struct cli_model *model, struct expert_stats *stats);

/* What cli_model_open will put into memory, for a prepared model; chooses its rows of a set where --chunk does not say. budget: empty, with
 * its limit. profile: of the machine's drives and kernels, NULL: this one's own. */
struct memory_plan;
struct budget;
enum status cli_model_plan(struct model *model, const struct cli_model_options *options, const char *profile, struct memory_plan *plan,
                           struct budget *budget, struct error *err);

#endif
