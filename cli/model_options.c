#include "cli/model_options.h"

enum status cli_open_model(struct model **model, const char *dir, const struct cli_model_options *options, struct error *err)
{
    return model_open(model, dir,
                      &(struct model_options){.isa = options->isa,
                                              .n_threads = (int)options->threads,
                                              .max_rows = (int)options->chunk,
                                              .max_positions = (int)options->context,
                                              .memory_limit = (uint64_t)options->memory},
                      err);
}
