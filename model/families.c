#include "model/families.h"

#include <stddef.h>
#include <string.h>

static const struct model_family families[] = {
    {"glm_moe_dsa", "GlmMoeDsaForCausalLM", "GLM-5, GLM-5.1, GLM-5.2, GLM-5.3"},
};

const struct model_family *model_family_find(const char *model_type)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (!strcmp(families[i].model_type, model_type))
            return &families[i];
    return NULL;
}

const char *model_families_supported(void)
{
    return "glm_moe_dsa (GLM-5, GLM-5.1, GLM-5.2, GLM-5.3)";
}
