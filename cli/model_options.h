/* The options that every command which runs a model has in common. */
#ifndef HEARTH_CLI_MODEL_OPTIONS_H
#define HEARTH_CLI_MODEL_OPTIONS_H

#include "common/options.h"
#include "model/model.h"

struct cli_model_options {
    const char *dir; /* where the command takes the folder as an option */
    const char *isa;
    int64_t threads, context, chunk, memory;
};

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
         .help = "rows that go through a layer together; 0: 64"},                                                                          \
        {"memory",                                                                                                                         \
         OPTION_SIZE,                                                                                                                      \
         offsetof(type, member.memory),                                                                                                    \
         "0",                                                                                                                              \
         0,                                                                                                                                \
         1e15,                                                                                                                             \
         .metavar = "SIZE",                                                                                                                \
         .help = "memory limit, e.g. 12G; 0: what is free"},                                                                               \
    {                                                                                                                                      \
        "isa", OPTION_CHOICE, offsetof(type, member.isa), "auto", .choices = "auto|scalar|avx2|avx512", .metavar = "ISA",                  \
                                                                  .help = "instruction set of the kernels; results do not depend on it"    \
    }

enum status cli_open_model(struct model **model, const char *dir, const struct cli_model_options *options, struct error *err);

#endif
