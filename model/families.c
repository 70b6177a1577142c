#include "model/families.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

static const struct model_family families[] = {
    {"glm_moe_dsa", "GLM-5, GLM-5.1, GLM-5.2, GLM-5.3"},
};

const struct model_family *model_family_find(const char *model_type)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (!strcmp(families[i].model_type, model_type))
            return &families[i];
    return NULL;
}

char *model_families_supported(void)
{
    struct text text = {0};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        char *row = xasprintf("%s%s (%s)", i ? ", " : "", families[i].model_type, families[i].examples);
        text_append_string(&text, row);
        free(row);
    }
    return text.bytes;
}
