#include "coordinator/placement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/memory.h"

int placement_is_legal_cut(const struct model_config *config, int layer)
{
    return layer > 0 && layer < config->n_layers && config->has_indexer[layer];
}

static void legal_cuts_text(const struct model_config *c, char *out, size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (int layer = 1; layer < c->n_layers && used + 8 < size; layer++)
        if (placement_is_legal_cut(c, layer))
            used += (size_t)snprintf(out + used, size - used, "%s%d", used ? ", " : "", layer);
}

enum status placement_split(const struct model_config *c, const uint64_t *layer_bytes, int n, struct layer_range *ranges, struct error *err)
{
    int cuts[LAYERS_MAX + 1], n_cuts = 0; /* possible borders, 0 and n_layers included */
    for (int layer = 0; layer <= c->n_layers; layer++)
        if (layer == 0 || layer == c->n_layers || placement_is_legal_cut(c, layer))
            cuts[n_cuts++] = layer;
    if (n < 1 || n > n_cuts - 1)
        return error_set(err, STATUS_INVALID, "%d nodes, but the model can be cut into at most %d ranges", n, n_cuts - 1);
    uint64_t before[LAYERS_MAX + 2]; /* bytes of layers below */
    before[0] = 0;
    for (int layer = 0; layer < c->n_layers; layer++)
        before[layer + 1] = before[layer] + layer_bytes[layer];
    if (c->n_mtp_layers)
        before[c->n_layers] += layer_bytes[c->n_layers];
    /* best[k][j]: the smallest largest range when the layers below cuts[j] are cut into k ranges; from[k][j]: where the last of them begins. */
    uint64_t(*best)[LAYERS_MAX + 1] = xcalloc((size_t)n + 1, sizeof *best);
    int(*from)[LAYERS_MAX + 1] = xcalloc((size_t)n + 1, sizeof *from);
    for (int k = 0; k <= n; k++)
        for (int j = 0; j < n_cuts; j++) {
            best[k][j] = k == 0 && j == 0 ? 0 : UINT64_MAX;
            for (int i = 0; k > 0 && i < j; i++) {
                uint64_t last = before[cuts[j]] - before[cuts[i]], worst = best[k - 1][i] > last ? best[k - 1][i] : last;
                if (best[k - 1][i] != UINT64_MAX && worst < best[k][j]) {
                    best[k][j] = worst;
                    from[k][j] = i;
                }
            }
        }
    for (int k = n, j = n_cuts - 1; k > 0; j = from[k][j], k--)
        ranges[k - 1] = (struct layer_range){cuts[from[k][j]], cuts[j]};
    free(best);
    free(from);
    return STATUS_OK;
}

static enum status parse_part(const struct model_config *c, char *part, int n, const char **names, struct layer_range *ranges, struct error *err)
{
    char *colon = strrchr(part, ':'), rest;
    int begin, end, expected = n ? ranges[n - 1].end : 0;
    if (!colon || colon == part || sscanf(colon + 1, "%d-%d%c", &begin, &end, &rest) != 2)
        return error_set(err, STATUS_INVALID, "layers: '%s' is not NAME:BEGIN-END", part);
    *colon = 0;
    if (begin != expected || end <= begin || end > c->n_layers)
        return error_set(err, STATUS_INVALID, "layers: '%s' has %d-%d; it must begin at %d and end by %d", part, begin, end, expected, c->n_layers);
    if (end < c->n_layers && !placement_is_legal_cut(c, end)) {
        char legal[400];
        legal_cuts_text(c, legal, sizeof legal);
        return error_set(err, STATUS_INVALID, "layers: rows cannot be cut before layer %d, only before %s", end, legal);
    }
    for (int i = 0; i < n; i++)
        if (!strcmp(names[i], part))
            return error_set(err, STATUS_INVALID, "layers: node '%s' is named twice", part);
    names[n] = part;
    ranges[n] = (struct layer_range){begin, end};
    return STATUS_OK;
}

enum status placement_parse(const struct model_config *c, const char *text, int n_max, const char **names, struct layer_range *ranges, int *n,
                            char **storage, struct error *err)
{
    char *save = NULL;
    enum status status = STATUS_OK;
    *storage = xstrdup(text);
    *n = 0;
    for (char *part = strtok_r(*storage, ", ", &save); part && !status; part = strtok_r(NULL, ", ", &save)) {
        if (*n == n_max)
            status = error_set(err, STATUS_INVALID, "layers: more than %d nodes", n_max);
        else
            status = parse_part(c, part, *n, names, ranges, err);
        *n += !status;
    }
    if (!status && (!*n || ranges[*n - 1].end != c->n_layers))
        status = error_set(err, STATUS_INVALID, "layers: the last range must end at %d", c->n_layers);
    if (status) {
        free(*storage);
        *storage = NULL;
    }
    return status;
}
