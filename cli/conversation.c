#include "cli/conversation.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/chat_parse.h"
#include "model/chat_render.h"
#include "model/detokenizer.h"
#include "model/generate.h"
#include "model/generation_config.h"
#include "model/utf8.h"

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

/* JSON holds nothing but UTF-8, and a terminal may send anything. */
static json_t *json_of(const char *bytes, size_t length)
{
    struct text repaired = {0};
    utf8_append_repaired(&repaired, bytes, length);
    json_t *string = json_stringn(repaired.bytes ? repaired.bytes : "", repaired.length);
    text_free(&repaired);
    return string;
}

static json_t *message_new(const char *role, const char *content, size_t length)
{
    return json_pack("{s:s, s:o}", "role", role, "content", json_of(content, length));
}

static void set_sampling(struct conversation *c, const struct generation_config *g)
{
    const struct conversation_options *o = c->options;
    c->sampling = g->sampling;
    if (o->temperature >= 0)
        c->sampling.temperature = o->temperature;
    if (o->top_p >= 0)
        c->sampling.top_p = o->top_p;
    if (o->min_p >= 0)
        c->sampling.min_p = o->min_p;
    if (o->top_k >= 0)
        c->sampling.top_k = (int)o->top_k;
    c->sampling.seed = (uint64_t)o->seed;
}

static void add_stop_id(struct conversation *c, int id)
{
    for (int i = 0; i < c->n_stop_ids; i++)
        if (c->stop_ids[i] == id)
            return;
    if (c->n_stop_ids < (int)(sizeof c->stop_ids / sizeof *c->stop_ids))
        c->stop_ids[c->n_stop_ids++] = id;
}

enum status conversation_open(struct conversation *c, const char *dir, const struct conversation_options *options, struct error *err)
{
    *c = (struct conversation){.options = options, .messages = json_array()};
    struct generation_config generation;
    char *tokenizer_path = xasprintf("%s/tokenizer.json", dir), *generation_path = xasprintf("%s/generation_config.json", dir);
    enum status status = routing_recorder_open(&c->recorder, options->trace, err);
    if (!status)
        status = cli_model_open(&c->loaded, dir, &options->model, routing_recorder_observer(&c->recorder), err);
    c->model = c->loaded.model;
    if (!status)
        routing_recorder_begin(&c->recorder, c->model->config);
    if (!status)
        status = tokenizer_open(&c->tokenizer, tokenizer_path, err);
    if (!status)
        status = generation_config_read(&generation, generation_path, err);
    if (!status)
        status = model_sequence_init(c->model, &c->sequence, c->model->max_positions, err);
    if (!status) {
        set_sampling(c, &generation);
        status = sampler_params_check(&c->sampling, err);
    }
    free(tokenizer_path);
    free(generation_path);
    if (status) {
        conversation_close(c);
        return status;
    }
    for (int i = 0; i < c->model->config->n_eos_ids; i++)
        add_stop_id(c, c->model->config->eos_ids[i]);
    for (int i = 0; i < generation.n_eos_ids; i++)
        add_stop_id(c, generation.eos_ids[i]);
    if (options->system)
        json_array_append_new(c->messages, message_new("system", options->system, strlen(options->system)));
    return STATUS_OK;
}

void conversation_close(struct conversation *c)
{
    if (c->sequence.cache)
        sequence_state_release(&c->sequence);
    id_list_free(&c->ids);
    tokenizer_close(&c->tokenizer);
    routing_recorder_close(&c->recorder, NULL);
    cli_model_close(&c->loaded);
    json_decref(c->messages);
    c->messages = NULL;
}

/* The prompt as ids. */
static enum status prompt_ids(const struct conversation *c, struct id_list *ids, int *opens_reasoning, struct error *err)
{
    json_t *options = json_pack("{s:b, s:b, s:s}", "add_generation_prompt", 1, "enable_thinking", !c->options->no_think, "reasoning_effort",
                                c->options->effort);
    struct chat_prompt prompt = {0};
    enum status status = chat_render(&chat_form_glm52, c->messages, NULL, options, &prompt, err);
    if (!status)
        status = tokenizer_encode(c->tokenizer, prompt.spans, prompt.n_spans, ids, err);
    *opens_reasoning = prompt.opens_reasoning;
    chat_prompt_free(&prompt);
    json_decref(options);
    return status;
}

/* An answer on its way to the terminal. */
struct answer {
    struct conversation *conversation;
    struct chat_parser *parser;
    struct detokenizer detokenizer;
    struct text piece, content, reasoning;
    enum chat_event_kind shown;
    int is_terminal;
    struct error *err;
    enum status status;
};

static void switch_to(struct answer *a, enum chat_event_kind kind)
{
    if (a->shown == kind)
        return;
    if (a->shown == CHAT_REASONING && a->reasoning.length)
        fputs(a->is_terminal ? "\033[0m\n" : "\n", stdout);
    if (kind == CHAT_REASONING && a->is_terminal)
        fputs("\033[2m", stdout);
    a->shown = kind;
}

static void on_event(void *ctx, const struct chat_event *event)
{
    struct answer *a = ctx;
    switch (event->kind) {
    case CHAT_REASONING:
    case CHAT_CONTENT:
        switch_to(a, event->kind);
        text_append(event->kind == CHAT_REASONING ? &a->reasoning : &a->content, event->text, event->length);
        fwrite(event->text, 1, event->length, stdout);
        break;
    case CHAT_CALL_END:
        switch_to(a, CHAT_CONTENT);
        printf("[calls %s %s]\n", event->name, event->arguments);
        break;
    default:
        break;
    }
    fflush(stdout);
}

static int on_token(void *ctx, int id)
{
    struct answer *a = ctx;
    text_clear(&a->piece);
    id_list_push(&a->conversation->ids, id);
    a->status = detokenizer_feed(&a->detokenizer, a->conversation->tokenizer, id, &a->piece, a->err);
    if (!a->status && a->piece.length)
        a->status = chat_parser_feed(a->parser, a->piece.bytes, a->piece.length, a->err);
    return a->status || interrupted || ferror(stdout); /* nobody reads on: main says so */
}

/* What was held back comes out, and the terminal is as before. */
static void finish_answer(struct answer *a)
{
    text_clear(&a->piece);
    detokenizer_finish(&a->detokenizer, &a->piece);
    if (!a->status && a->piece.length)
        a->status = chat_parser_feed(a->parser, a->piece.bytes, a->piece.length, a->err);
    chat_parser_finish(a->parser);
    if (a->shown == CHAT_REASONING && a->is_terminal)
        fputs("\033[0m", stdout);
    putchar('\n');
    fflush(stdout);
}

static void print_figures(const struct generation *g, int n_reused)
{
    double prefill = (double)g->prefill_ns / 1e6, decode = (double)g->decode_ns / 1e9;
    fprintf(stderr, "[%d prompt tokens, %d of them from before, in %.1f ms; %d tokens at %.1f tokens/s%s]\n", g->n_prompt, n_reused, prefill,
            g->n_new, g->n_new > 1 && decode > 0 ? (g->n_new - 1) / decode : 0.0,
            g->end == GENERATION_LENGTH ? "; cut at --max-tokens or --context" : "");
}

/* What the answer has asked of the drive; before: the counts when it began. */
static void print_expert_figures(const struct cli_model *m, const struct expert_stats *before, const struct generation *g)
{
    struct expert_stats now;
    if (!cli_model_experts(m, &now))
        return;
    struct expert_stats answer = expert_stats_since(&now, before);
    double hits = (double)answer.hits, asked = hits + (double)answer.misses;
    double wait = (double)answer.wait_ns, all = (double)(g->prefill_ns + g->decode_ns);
    fprintf(stderr, "[experts: %.1f %% of %.0f were in memory, %.2f GB read, %.0f %% of the time waiting for them]\n", asked > 0 ? 100 * hits / asked : 100.0,
            asked, (double)answer.bytes_read / 1e9, all > 0 ? 100 * wait / all : 0.0);
}

static void remember_answer(struct conversation *c, const struct answer *a)
{
    json_t *message = message_new("assistant", a->content.bytes, a->content.length);
    if (a->reasoning.length)
        json_object_set_new(message, "reasoning_content", json_of(a->reasoning.bytes, a->reasoning.length));
    json_array_append_new(c->messages, message);
}

/* Lowers the sequence to what it shares with the new prompt; at least one token is left to compute. */
static size_t keep_prefix(struct conversation *c, const struct id_list *ids)
{
    size_t shared = 0, have = (size_t)c->sequence.length;
    while (shared < have && shared + 1 < ids->n && c->ids.ids[shared] == ids->ids[shared])
        shared++;
    sequence_state_truncate(&c->sequence, (int)shared);
    c->ids.n = 0;
    for (size_t i = 0; i < ids->n; i++)
        id_list_push(&c->ids, ids->ids[i]);
    return shared;
}

static enum status run_answer(struct conversation *c, struct answer *a, const struct id_list *ids, struct error *err)
{
    int room = c->model->max_positions - (int)ids->n;
    if (room < 1)
        return error_set(err, STATUS_INVALID, "the conversation has %zu tokens, there is room for %d; start anew or raise --context",
                         ids->n, c->model->max_positions);
    size_t shared = keep_prefix(c, ids);
    struct generation g = {.prompt = ids->ids,
                           .n_prompt = (int)ids->n,
                           .sampling = c->sampling,
                           .stop_ids = c->stop_ids,
                           .n_stop_ids = c->n_stop_ids,
                           .n_tokens = tokenizer_size(c->tokenizer),
                           .max_new = (int)(c->options->max_tokens < room ? c->options->max_tokens : room),
                           .on_token = on_token,
                           .ctx = a};
    if (g.n_tokens > c->model->config->vocab_size)
        return error_set(err, STATUS_INVALID, "tokenizer.json has ids up to %d, but vocab_size is %d", g.n_tokens - 1,
                         c->model->config->vocab_size);
    struct expert_stats before = {0};
    cli_model_experts(&c->loaded, &before);
    enum status status = generate(c->model, &c->sequence, &g, err);
    finish_answer(a);
    if (!status)
        status = a->status;
    if (!status) {
        print_figures(&g, (int)shared);
        print_expert_figures(&c->loaded, &before, &g);
    }
    return status;
}

enum status conversation_ask(struct conversation *c, const char *question, struct error *err)
{
    struct answer a = {.conversation = c, .shown = CHAT_CONTENT, .is_terminal = isatty(STDOUT_FILENO), .err = err};
    struct id_list ids = {0};
    int opens_reasoning;
    struct sigaction action = {.sa_handler = on_interrupt}, before;
    json_array_append_new(c->messages, message_new("user", question, strlen(question)));
    enum status status = prompt_ids(c, &ids, &opens_reasoning, err);
    if (!status) {
        interrupted = 0;
        sigaction(SIGINT, &action, &before);
        a.parser = chat_parser_new(NULL, opens_reasoning, on_event, &a);
        status = run_answer(c, &a, &ids, err);
        chat_parser_free(&a.parser);
        sigaction(SIGINT, &before, NULL);
    }
    if (!status)
        remember_answer(c, &a);
    id_list_free(&ids);
    text_free(&a.piece);
    text_free(&a.content);
    text_free(&a.reasoning);
    return status;
}
