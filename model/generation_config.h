/* generation_config.json: what the vendor recommends where a request leaves it open, and the ids that end an answer. */
#ifndef HEARTH_MODEL_GENERATION_CONFIG_H
#define HEARTH_MODEL_GENERATION_CONFIG_H

#include "common/error.h"
#include "model/sampler.h"

enum { GENERATION_EOS_MAX = 16 };

struct generation_config {
    struct sampler_params sampling; /* seed 0, no bias; has passed sampler_params_check */
    int eos_ids[GENERATION_EOS_MAX];
    int n_eos_ids; /* 0: the file names none, config.json's count */
};

/* Reads path. A missing file is no error: nothing is recommended (sampler_params_default, no ids). Fails naming file and key when a value
 * makes no sense. */
enum status generation_config_read(struct generation_config *config, const char *path, struct error *err);

#endif
