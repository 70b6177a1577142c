#include "model/model.h"

#include <stdlib.h>
#include <string.h>

#include "common/budget.h"
#include "common/check.h"
#include "common/memory.h"
#include "kernels/parallel.h"
#include "model/embedding.h"

enum {
    ROWS_DEFAULT = 64,
    BLOCK_ROWS_MAX = 64, /* rows whose scratch is held at once: more share no weight that these do not */
    POSITIONS_DEFAULT = 8192,
    RUNTIME_BYTES = 64 << 20, /* libraries, stacks, tokenizer tables: measured 30 MiB with kindling, doubled */
};

static size_t selection_capacity(const struct model_config *c)
{
    return (size_t)c->index_topk + DRAFT_DEPTH_MAX;
}

static size_t row_bytes(const struct model_config *c)
{
    return sizeof(struct row) + sizeof(struct row *) + 2 * (size_t)c->hidden_size * sizeof(float) + selection_capacity(c) * sizeof(int);
}

static int block_rows(const struct model *m)
{
    return m->max_rows < BLOCK_ROWS_MAX ? m->max_rows : BLOCK_ROWS_MAX;
}

uint64_t model_prefill_bytes(const struct model_config *c, int max_rows)
{
    return (uint64_t)max_rows * row_bytes(c) + (max_rows > BLOCK_ROWS_MAX ? layer_pass_bytes(c, max_rows) : 0);
}

void model_set_max_rows(struct model *m, int max_rows)
{
    CHECK(!m->rows && max_rows >= 1);
    m->max_rows = max_rows;
}

void model_budget(const struct model *m, struct budget *budget)
{
    const struct model_config *c = m->config;
    int layers = config_layers_with_mtp(c);
    budget_add(budget, "weights", model_weights_bytes(m->source, 0, layers, EMBEDDING_IN_RAM, 1), NULL);
    budget_add(budget, "position caches", position_cache_block_bytes(c, 0, layers) * (uint64_t)cache_blocks_for(m->max_positions), "lower --context");
    budget_add(budget, "scratch", workspace_bytes(c, block_rows(m), m->max_positions, parallel_threads()), NULL);
    budget_add(budget, "prefill rows", model_prefill_bytes(c, m->max_rows), "lower --chunk");
    budget_add(budget, "runtime", RUNTIME_BYTES, NULL);
}

static void allocate_rows(struct model *m, int max_rows)
{
    const struct model_config *c = m->config;
    size_t n = (size_t)(max_rows > 2 ? max_rows : 2), capacity = selection_capacity(c); /* 2: a draft chain keeps its first row */
    m->rows = xcalloc(n, sizeof *m->rows);
    m->row_list = xcalloc(n, sizeof(struct row *));
    m->residuals = xcalloc(n * (size_t)c->hidden_size, sizeof(float));
    m->hidden = xcalloc(n * (size_t)c->hidden_size, sizeof(float));
    m->selections = xcalloc(n * capacity, sizeof(int));
    for (size_t i = 0; i < n; i++) {
        m->rows[i].residual = m->residuals + i * (size_t)c->hidden_size;
        m->rows[i].selection.positions = m->selections + i * capacity;
        m->row_list[i] = &m->rows[i];
    }
}

enum status model_load(struct model *m, struct expert_source *experts, struct error *err)
{
    int layers = config_layers_with_mtp(m->config);
    enum status status = model_weights_load(&m->weights, m->source, 0, layers, EMBEDDING_IN_RAM, 1, err);
    if (!status)
        status = workspace_init(&m->work, m->config, block_rows(m), m->max_positions, parallel_threads(), err);
    if (!status && m->max_rows > BLOCK_ROWS_MAX)
        status = layer_pass_init(&m->pass, m->config, m->max_rows, err);
    if (!status)
        status = position_cache_init(&m->cache, m->config, 0, layers, cache_blocks_for(m->max_positions), err);
    if (status)
        return status;
    allocate_rows(m, m->max_rows);
    m->context = (struct layer_context){m->config, &m->kernels, &m->weights, experts, &m->work, m->options.observer};
    return STATUS_OK;
}

enum status model_load_resident(struct model *m, struct error *err)
{
    enum status status = resident_experts_load(&m->experts, m->source, 0, config_layers_with_mtp(m->config), err);
    return status ? status : model_load(m, &m->experts.source, err);
}

enum status model_prepare(struct model **out, const char *dir, const struct model_options *options, struct error *err)
{
    struct model *m = xcalloc(1, sizeof *m);
    enum status status = kernels_select(&m->kernels, options->isa ? options->isa : "auto", err);
    if (!status)
        status = weights_source_open(&m->source, dir, err);
    if (status) {
        model_close(&m);
        return error_wrap(err, "open model %s", dir);
    }
    m->config = weights_source_config(m->source);
    m->options = *options;
    int positions = options->max_positions ? options->max_positions : POSITIONS_DEFAULT;
    m->max_positions = options->max_positions || positions < m->config->max_positions ? positions : m->config->max_positions;
    m->max_rows = options->max_rows ? options->max_rows : ROWS_DEFAULT;
    parallel_set_threads(options->n_threads ? options->n_threads : parallel_cores());
    *out = m;
    return STATUS_OK;
}

enum status model_open(struct model **out, const char *dir, const struct model_options *options, struct error *err)
{
    struct model *m = NULL;
    struct budget budget = {.limit = options->memory_limit ? options->memory_limit : memory_available_bytes()};
    *out = NULL;
    enum status status = model_prepare(&m, dir, options, err);
    if (status)
        return status;
    model_budget(m, &budget);
    budget_add(&budget, "experts", resident_experts_bytes(m->source, 0, config_layers_with_mtp(m->config)), "convert with --precision int4");
    status = budget_check(&budget, err);
    if (!status)
        status = model_load_resident(m, err);
    if (status)
        model_close(&m);
    *out = m;
    return status ? error_wrap(err, "open model %s", dir) : STATUS_OK;
}

void model_close(struct model **model)
{
    struct model *m = *model;
    if (!m)
        return;
    model_weights_release(&m->weights);
    resident_experts_release(&m->experts);
    workspace_release(&m->work);
    layer_pass_release(&m->pass);
    position_cache_release(&m->cache);
    free(m->rows);
    free(m->row_list);
    free(m->residuals);
    free(m->hidden);
    free(m->selections);
    weights_source_close(&m->source);
    free(m);
    *model = NULL;
}

enum status model_sequence_init(struct model *model, struct sequence_state *sequence, int positions, struct error *err)
{
    if (positions > model->max_positions)
        return error_set(err, STATUS_INVALID, "%d positions asked for, the model was opened for %d; raise --context", positions, model->max_positions);
    return sequence_state_init(sequence, &model->cache, positions, err);
}

static void start_row(struct row *row, struct sequence_state *sequence, int position, int layer)
{
    float *residual = row->residual;
    int *positions = row->selection.positions;
    *row = (struct row){.sequence = sequence, .position = position, .next_layer = layer, .residual = residual, .is_finite = 1};
    row->selection.positions = positions;
}

/* One layer for the set; a row that is not finite any more stops the run. */
static enum status run_layer(struct model *m, int layer, int n_rows, struct error *err)
{
    enum status status;
    int is_done;
    if (n_rows <= m->work.max_rows) {
        status = layer_forward(&m->context, layer, m->row_list, n_rows, err);
    } else {
        layer_pass_begin(&m->pass, layer, m->row_list, n_rows);
        status = layer_pass_run(&m->context, &m->pass, 0, &is_done, err);
    }
    for (int i = 0; i < n_rows && !status; i++)
        if (!m->rows[i].is_finite)
            status = error_set(err, STATUS_CORRUPT, "layer %d, position %d: a value is not finite", layer, m->rows[i].position);
    return status;
}

/* Where the rows of a set came from: n rows of an input, from its token `first` on. */
struct piece {
    const struct model_input *input;
    int first, n;
};

static void hand_out(struct model *m, const struct piece *piece, int row)
{
    const struct model_config *c = m->config;
    const float *hidden = m->hidden + (size_t)row * (size_t)c->hidden_size;
    if (piece->input->hidden)
        memcpy(piece->input->hidden + (size_t)piece->first * (size_t)c->hidden_size, hidden, (size_t)piece->n * (size_t)c->hidden_size * sizeof(float));
    for (int i = 0, n; i < piece->n && piece->input->logits; i += n) {
        n = piece->n - i < m->work.max_rows ? piece->n - i : m->work.max_rows;
        head_logits(&m->context, hidden + (size_t)i * (size_t)c->hidden_size, n,
                    piece->input->logits + (size_t)(piece->first + i) * (size_t)c->vocab_size);
    }
}

static enum status run_set(struct model *m, const struct piece *pieces, int n_pieces, int n_rows, struct error *err)
{
    enum status status = STATUS_OK;
    int row = 0;
    for (int p = 0; p < n_pieces && !status; p++) {
        struct sequence_state *sequence = pieces[p].input->sequence;
        status = sequence_state_prepare(sequence, sequence->length, sequence->length + pieces[p].n, err);
        for (int i = 0; i < pieces[p].n && !status; i++, row++) {
            start_row(&m->rows[row], sequence, sequence->length + i, 0);
            status = embedding_row(&m->weights.embedding, pieces[p].input->tokens[pieces[p].first + i], m->rows[row].residual, err);
        }
    }
    for (int layer = 0; layer < m->config->n_layers && !status; layer++)
        status = run_layer(m, layer, n_rows, err);
    if (status)
        return status;
    head_norm(&m->context, m->row_list, n_rows, m->hidden);
    row = 0;
    for (int p = 0; p < n_pieces; p++) {
        hand_out(m, &pieces[p], row);
        pieces[p].input->sequence->length += pieces[p].n;
        row += pieces[p].n;
    }
    return STATUS_OK;
}

enum status model_forward(struct model *m, const struct model_input *inputs, int n_inputs, struct error *err)
{
    enum { PIECES_MAX = 64 };
    struct piece pieces[PIECES_MAX];
    int n_pieces = 0, n_rows = 0;
    for (int i = 0; i < n_inputs; i++)
        for (int t = 0; t < inputs[i].n; t++)
            if (inputs[i].tokens[t] < 0 || inputs[i].tokens[t] >= m->config->vocab_size)
                return error_set(err, STATUS_INVALID, "token id %d is outside the vocabulary of %d", inputs[i].tokens[t], m->config->vocab_size);
    enum status status = STATUS_OK;
    for (int i = 0; i < n_inputs && !status; i++)
        for (int first = 0; first < inputs[i].n && !status;) {
            int n = inputs[i].n - first, room = m->max_rows - n_rows;
            n = n < room ? n : room;
            pieces[n_pieces++] = (struct piece){&inputs[i], first, n};
            n_rows += n;
            first += n;
            if (n_rows == m->max_rows || n_pieces == PIECES_MAX) {
                status = run_set(m, pieces, n_pieces, n_rows, err);
                n_pieces = n_rows = 0;
            }
        }
    if (!status && n_rows)
        status = run_set(m, pieces, n_pieces, n_rows, err);
    return status;
}

static enum status run_mtp_set(struct model *m, struct sequence_state *sequence, int first, const int *tokens, int n, const float *hidden, float *logits,
                               struct error *err)
{
    for (int i = 0; i < n; i++) {
        start_row(&m->rows[i], sequence, first + i, m->config->n_layers);
        m->rows[i].only_cache = !logits;
    }
    enum status status = mtp_enter(&m->context, m->row_list, n, tokens, hidden, err);
    if (!status)
        status = run_layer(m, m->config->n_layers, n, err);
    if (status || !logits)
        return status;
    mtp_norm(&m->context, m->row_list, n, m->hidden);
    head_logits(&m->context, m->hidden, n, logits);
    return STATUS_OK;
}

enum status model_mtp_rows(struct model *m, struct sequence_state *sequence, int first, const int *tokens, int n, const float *hidden, float *logits,
                           struct error *err)
{
    const struct model_config *c = m->config;
    if (!c->n_mtp_layers)
        return error_set(err, STATUS_UNSUPPORTED, "this model has no MTP layer");
    CHECK(first == sequence->mtp_length && first + n <= sequence->length);
    for (int done = 0, now; done < n; done += now) {
        now = n - done < m->work.max_rows ? n - done : m->work.max_rows;
        enum status status = sequence_state_prepare(sequence, first + done, first + done + now, err);
        if (!status)
            status = run_mtp_set(m, sequence, first + done, tokens + done, now, hidden + (size_t)done * (size_t)c->hidden_size,
                                 logits ? logits + (size_t)done * (size_t)c->vocab_size : NULL, err);
        if (status)
            return status;
        sequence->mtp_length += now;
    }
    return STATUS_OK;
}

enum status model_draft_chain(struct model *m, struct sequence_state *sequence, int position, int token, const float *hidden, int depth, int n_tokens,
                              int *ids, struct error *err)
{
    const struct model_config *c = m->config;
    CHECK(depth >= 1 && depth <= DRAFT_DEPTH_MAX && position == sequence->mtp_length && n_tokens <= c->vocab_size);
    float *logits = xcalloc((size_t)c->vocab_size, sizeof *logits);
    /* rows[0] stays the round's first row: its selection is what later rows reuse. */
    enum status status = sequence_state_prepare(sequence, position, position + depth, err);
    const float *h = hidden;
    for (int step = 0; step < depth && !status; step++) {
        int slot = step ? 1 : 0;
        struct row *row = &m->rows[slot], *list[] = {row};
        start_row(row, sequence, position + step, c->n_layers);
        if (step && c->index_share_for_mtp)
            mtp_reuse_selection(row, &m->rows[0].selection, position, position + step);
        status = mtp_enter(&m->context, list, 1, &token, h, err);
        if (!status)
            status = layer_forward(&m->context, c->n_layers, list, 1, err);
        if (!status && !row->is_finite)
            status = error_set(err, STATUS_CORRUPT, "MTP layer, position %d: a value is not finite", row->position);
        if (status)
            break;
        mtp_norm(&m->context, list, 1, m->hidden);
        head_logits(&m->context, m->hidden, 1, logits);
        ids[step] = token = largest_logit(logits, n_tokens);
        h = m->hidden;
        if (!step)
            sequence->mtp_length = position + 1;
    }
    free(logits);
    return status;
}
