/* One row per supported GLM family: what a config.json's model_type selects. */
#ifndef HEARTH_MODEL_FAMILIES_H
#define HEARTH_MODEL_FAMILIES_H

struct model_family {
    const char *model_type;
    const char *examples; /* for error sentences */
};

/* NULL when the model type is not supported. */
const struct model_family *model_family_find(const char *model_type);

/* "TYPE (EXAMPLES), ..." of all rows, for an error sentence; malloc'ed. */
char *model_families_supported(void);

#endif
