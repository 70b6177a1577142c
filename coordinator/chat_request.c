#include "coordinator/chat_request.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/check.h"
#include "common/memory.h"
#include "coordinator/chat_messages.h"
#include "model/chat_render.h"

/* null is the same as absent, everywhere. */
static const json_t *field(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static int wrong(struct api_error *error, const char *param, const char *sentence)
{
    return api_refuse(error, 400, NULL, param, "%s %s", param, sentence);
}

static int unsupported(struct api_error *error, const char *param, const char *sentence)
{
    return api_refuse(error, 400, "unsupported_parameter", param, "%s %s", param, sentence);
}

static int read_bool(const json_t *object, const char *key, const char *param, int *out, struct api_error *error)
{
    const json_t *value = field(object, key);
    if (value && !json_is_boolean(value))
        return wrong(error, param, "must be true, false or null");
    if (value)
        *out = json_is_true(value);
    return 0;
}

/* ---- fields that would change the answer and that we cannot honour ---- */

static int is_neutral(const json_t *value)
{
    if (!value || json_is_false(value))
        return 1;
    if (json_is_number(value))
        return json_number_value(value) == 0;
    if (json_is_string(value))
        return !json_string_length(value);
    return (json_is_array(value) && !json_array_size(value)) || (json_is_object(value) && !json_object_size(value));
}

static int refuse_what_is_missing(const json_t *root, struct api_error *error)
{
    static const char *const names[] = {"logprobs",    "top_logprobs",   "functions",     "audio",          "web_search_options",
                                        "guided_json", "guided_regex",   "guided_choice", "guided_grammar", "structured_outputs",
                                        "grammar",     "json_schema",    "min_tokens",    "ignore_eos",     "stop_token_ids",
                                        "bad_words",   "use_beam_search"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!is_neutral(field(root, names[i])))
            return unsupported(error, names[i], "is not supported");
    const json_t *n = field(root, "n"), *format = field(root, "response_format"), *choice = field(root, "tool_choice"),
                 *modes = field(root, "modalities");
    if (n && (!json_is_integer(n) || json_integer_value(n) < 1))
        return wrong(error, "n", "must be 1");
    if (n && json_integer_value(n) > 1)
        return unsupported(error, "n", "above 1 is not supported; ask several times");
    if (format) {
        const char *type = json_string_value(json_object_get(format, "type"));
        if (!type)
            return wrong(error, "response_format", "must be an object with a type");
        if (strcmp(type, "text"))
            return unsupported(error, "response_format", "other than text is not supported");
    }
    if (json_is_object(choice))
        return unsupported(error, "tool_choice", "with a name is not supported; use auto or none");
    if (choice && json_is_string(choice) && !strcmp(json_string_value(choice), "required"))
        return unsupported(error, "tool_choice", "required is not supported; use auto or none");
    if (choice && (!json_is_string(choice) || (strcmp(json_string_value(choice), "auto") && strcmp(json_string_value(choice), "none"))))
        return wrong(error, "tool_choice", "must be auto or none");
    for (size_t i = 0; i < json_array_size(modes); i++)
        if (!json_is_string(json_array_get(modes, i)) || strcmp(json_string_value(json_array_get(modes, i)), "text"))
            return unsupported(error, "modalities", "other than text is not supported");
    return 0;
}

/* ---- sampling ---- */

struct number_row {
    const char *name;
    size_t offset;
    double min, max;
};

#define AT(member) offsetof(struct sampler_params, member)
static const struct number_row numbers[] = {
    {"temperature", AT(temperature), 0, 100},
    {"top_p", AT(top_p), 0, 1},
    {"min_p", AT(min_p), 0, 1},
    {"repetition_penalty", AT(repetition_penalty), 0.01, 100},
    {"frequency_penalty", AT(frequency_penalty), -2, 2},
    {"presence_penalty", AT(presence_penalty), -2, 2},
};

static int read_numbers(struct sampler_params *sampling, const json_t *root, struct api_error *error)
{
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const struct number_row *row = &numbers[i];
        const json_t *value = field(root, row->name);
        double number = json_number_value(value);
        if (!value)
            continue;
        if (!json_is_number(value) || !(number >= row->min && number <= row->max))
            return api_refuse(error, 400, NULL, row->name, "%s must be a number from %g to %g", row->name, row->min, row->max);
        *(double *)(void *)((char *)sampling + row->offset) = number;
    }
    return 0;
}

static int read_integers(struct sampler_params *sampling, const json_t *root, uint64_t fixed_seed, struct api_error *error)
{
    const json_t *top_k = field(root, "top_k"), *seed = field(root, "seed");
    if (top_k && (!json_is_integer(top_k) || json_integer_value(top_k) < -1))
        return wrong(error, "top_k", "must be a whole number from -1; 0 and -1 turn it off");
    if (top_k)
        sampling->top_k = json_integer_value(top_k) < 0         ? 0
                          : json_integer_value(top_k) > 1 << 30 ? 1 << 30
                                                                : (int)json_integer_value(top_k);
    if (seed && !json_is_integer(seed))
        return wrong(error, "seed", "must be a whole number within 64 bits");
    sampling->seed = fixed_seed;
    if (seed)
        sampling->seed = (uint64_t)json_integer_value(seed);
    else if (!fixed_seed && getrandom(&sampling->seed, sizeof sampling->seed, 0) != sizeof sampling->seed)
        return api_refuse(error, 500, NULL, NULL, "no random numbers");
    return 0;
}

static int compare_bias(const void *a, const void *b)
{
    return ((const struct token_bias *)a)->id - ((const struct token_bias *)b)->id;
}

/* {"token id": -100 to 100} */
static int read_bias(struct chat_request *request, int n_tokens, struct api_error *error)
{
    const json_t *bias = field(request->root, "logit_bias");
    const char *key;
    json_t *value;
    if (!bias)
        return 0;
    if (!json_is_object(bias))
        return wrong(error, "logit_bias", "must be an object of token ids");
    request->bias = xcalloc(json_object_size(bias) + 1, sizeof *request->bias);
    request->sampling.bias = request->bias;
    json_object_foreach((json_t *)bias, key, value)
    {
        char *end;
        errno = 0;
        long id = strtol(key, &end, 10);
        if (errno || *end || strspn(key, "0123456789") != strlen(key) || !*key || (key[0] == '0' && key[1]) || id >= n_tokens)
            return api_refuse(error, 400, NULL, "logit_bias", "logit_bias: '%.40s' is no token id below %d", key, n_tokens);
        double number = json_number_value(value);
        if (!json_is_number(value) || !(number >= -100 && number <= 100))
            return api_refuse(error, 400, NULL, "logit_bias", "logit_bias: the value of %ld must be a number from -100 to 100", id);
        request->bias[request->sampling.n_bias++] = (struct token_bias){(int)id, number};
    }
    qsort(request->bias, request->sampling.n_bias, sizeof *request->bias, compare_bias);
    return 0;
}

static int read_sampling(struct chat_request *request, const struct http_server_config *config, struct api_error *error)
{
    struct error err;
    request->sampling = config->generation->sampling;
    if (read_numbers(&request->sampling, request->root, error) || read_integers(&request->sampling, request->root, config->seed, error) ||
        read_bias(request, tokenizer_size(config->tokenizer), error))
        return 1;
    return sampler_params_check(&request->sampling, &err) ? api_refuse(error, 400, NULL, NULL, "%s", err.text) : 0;
}

/* ---- ends ---- */

static int read_stops(struct chat_request *request, struct api_error *error)
{
    const json_t *stop = field(request->root, "stop");
    size_t n = json_is_array(stop) ? json_array_size(stop) : stop != NULL;
    if (n > CHAT_STOPS_MAX)
        return api_refuse(error, 400, NULL, "stop", "stop has %zu strings; at most %d are allowed", n, CHAT_STOPS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *string = json_is_array(stop) ? json_array_get(stop, i) : stop;
        if (!json_is_string(string) || !json_string_length(string))
            return wrong(error, "stop", "must be a string or a list of strings, none of them empty");
        request->stops[request->n_stops++] = json_string_value(string);
    }
    return 0;
}

/* What the client wants at most; it may be more than fits. */
static int read_max_new(const struct chat_request *request, int fallback, int64_t *out, struct api_error *error)
{
    static const char *const names[] = {"max_tokens", "max_completion_tokens"}; /* the last one wins */
    *out = fallback;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *value = field(request->root, names[i]);
        if (value && (!json_is_integer(value) || json_integer_value(value) < 1))
            return wrong(error, names[i], "must be a whole number from 1");
        if (value)
            *out = json_integer_value(value);
    }
    return 0;
}

static int read_stream(struct chat_request *request, struct api_error *error)
{
    const json_t *options = field(request->root, "stream_options");
    if (read_bool(request->root, "stream", "stream", &request->is_stream, error))
        return 1;
    if (options && !json_is_object(options))
        return wrong(error, "stream_options", "must be an object or null");
    return read_bool(options, "include_usage", "stream_options.include_usage", &request->include_usage, error);
}

/* ---- prompt ---- */

struct effort_row {
    const char *name, *template_name; /* NULL: thinking off */
};

static const struct effort_row efforts[] = {{"none", NULL},   {"minimal", NULL}, {"low", "high"}, {"medium", "high"},
                                            {"high", "high"}, {"xhigh", "max"},  {"max", "max"}};

static int apply_effort(json_t *options, const json_t *effort, const char *param, struct api_error *error)
{
    if (!effort)
        return 0;
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++)
        if (json_is_string(effort) && !strcmp(json_string_value(effort), efforts[i].name)) {
            json_object_set_new(options, "enable_thinking", json_boolean(efforts[i].template_name != NULL));
            if (efforts[i].template_name)
                json_object_set_new(options, "reasoning_effort", json_string(efforts[i].template_name));
            return 0;
        }
    return wrong(error, param, "must be none, minimal, low, medium, high, xhigh or max");
}

/* The template's options: reasoning_effort, over that `thinking` as the vendor's own API has it, over that chat_template_kwargs. */
static int read_template_options(const json_t *root, json_t *options, struct api_error *error)
{
    const json_t *kwargs = field(root, "chat_template_kwargs"), *thinking = field(root, "thinking");
    if (apply_effort(options, field(root, "reasoning_effort"), "reasoning_effort", error))
        return 1;
    if (thinking) {
        const char *type = json_string_value(json_object_get(thinking, "type"));
        if (!type || (strcmp(type, "enabled") && strcmp(type, "disabled")))
            return wrong(error, "thinking", "must be an object whose type is enabled or disabled");
        json_object_set_new(options, "enable_thinking", json_boolean(!strcmp(type, "enabled")));
    }
    if (kwargs && !json_is_object(kwargs))
        return wrong(error, "chat_template_kwargs", "must be an object or null");
    if (apply_effort(options, field(kwargs, "reasoning_effort"), "chat_template_kwargs.reasoning_effort", error))
        return 1;
    static const char *const flags[][2] = {{"enable_thinking", "chat_template_kwargs.enable_thinking"},
                                           {"clear_thinking", "chat_template_kwargs.clear_thinking"}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        int value = -1;
        if (read_bool(kwargs, flags[i][0], flags[i][1], &value, error))
            return 1;
        if (value >= 0)
            json_object_set_new(options, flags[i][0], json_boolean(value));
    }
    return 0;
}

static int read_tools(struct chat_request *request, struct api_error *error)
{
    json_t *tools = (json_t *)field(request->root, "tools");
    const char *choice = json_string_value(field(request->root, "tool_choice"));
    int is_parallel = 1;
    if (tools && !json_is_array(tools))
        return wrong(error, "tools", "must be a list or null");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *function = json_object_get(tool, "function");
        char param[32];
        snprintf(param, sizeof param, "tools[%zu]", i);
        if (!json_is_string(json_object_get(tool, "type")) || strcmp(json_string_value(json_object_get(tool, "type")), "function"))
            return unsupported(error, param, "must be a tool of type function");
        if (!json_is_object(function) || !json_is_string(json_object_get(function, "name")) ||
            !json_string_length(json_object_get(function, "name")))
            return wrong(error, param, "must have a function with a name");
        const json_t *parameters = field(function, "parameters");
        if (parameters && !json_is_object(parameters))
            return wrong(error, param, "has parameters that are no JSON schema");
    }
    if (read_bool(request->root, "parallel_tool_calls", "parallel_tool_calls", &is_parallel, error))
        return 1;
    request->one_call = !is_parallel;
    request->tools = !json_array_size(tools) || (choice && !strcmp(choice, "none")) ? NULL : tools;
    return 0;
}

static int refuse_length(size_t n_prompt, const char *more_than, int context, struct api_error *error)
{
    return api_refuse(error, 400, "context_length_exceeded", "messages",
                      "the prompt has %s%zu tokens and the context is %d tokens long, of which at least one is for the answer", more_than,
                      n_prompt, context);
}

/* Names the field that chat_render complains about: its sentences begin with it. */
static int refuse_rendering(const struct error *err, struct api_error *error)
{
    char param[sizeof error->param];
    snprintf(param, sizeof param, "%.*s", (int)strcspn(err->text, " :"), err->text);
    return api_refuse(error, 400, NULL, param, "%s", err->text);
}

static int encode(struct chat_request *request, const struct http_server_config *config, const struct chat_prompt *prompt,
                  struct api_error *error)
{
    struct error err;
    CHECK(config->token_bytes_max > 0);
    size_t n_least = prompt->text.length / (size_t)config->token_bytes_max;
    if (n_least >= (size_t)config->context_length)
        return refuse_length(n_least, "at least ", config->context_length, error); /* without the time that encoding it would take */
    if (tokenizer_encode(config->tokenizer, prompt->spans, prompt->n_spans, &request->prompt, &err))
        return api_refuse(error, 400, NULL, "messages", "%s", err.text);
    if (request->prompt.n >= (size_t)config->context_length)
        return refuse_length(request->prompt.n, "", config->context_length, error);
    return 0;
}

static int read_prompt(struct chat_request *request, const struct http_server_config *config, struct api_error *error)
{
    struct chat_prompt prompt = {0};
    struct error err;
    json_t *messages, *options;
    if (chat_messages_read(&messages, field(request->root, "messages"), error))
        return 1;
    options = json_pack("{s:b, s:b, s:s}", "add_generation_prompt", 1, "enable_thinking", 1, "reasoning_effort", "max");
    int refused = read_template_options(request->root, options, error);
    if (!refused && chat_render(&chat_form_glm52, messages, request->tools, options, &prompt, &err))
        refused = refuse_rendering(&err, error);
    if (!refused)
        refused = encode(request, config, &prompt, error);
    request->opens_reasoning = prompt.opens_reasoning;
    chat_prompt_free(&prompt);
    json_decref(messages);
    json_decref(options);
    return refused;
}

static int check_model(const json_t *root, const struct http_server_config *config, struct api_error *error)
{
    const json_t *model = field(root, "model");
    if (model && !json_is_string(model))
        return wrong(error, "model", "must be a string");
    if (model && strcmp(json_string_value(model), config->model_name))
        return api_refuse(error, 404, "model_not_found", "model", "there is no model '%.100s' here; this is '%.100s'",
                          json_string_value(model), config->model_name);
    return 0;
}

int chat_request_read(struct chat_request *request, const struct http_server_config *config, const char *body, size_t body_bytes,
                      struct api_error *error)
{
    int64_t max_new = 0;
    *request = (struct chat_request){0};
    if (http_json_parse(&request->root, body, body_bytes, error) || check_model(request->root, config, error) ||
        refuse_what_is_missing(request->root, error) || read_sampling(request, config, error) || read_stops(request, error) ||
        read_max_new(request, config->default_max_new ? config->default_max_new : 2048, &max_new, error) || read_stream(request, error) ||
        read_tools(request, error) || read_prompt(request, config, error))
        return 1;
    int room = config->context_length - (int)request->prompt.n;
    request->max_new = max_new < room ? (int)max_new : room;
    CHECK(request->max_new >= 1);
    return 0;
}

void chat_request_release(struct chat_request *request)
{
    json_decref(request->root);
    free(request->bias);
    id_list_free(&request->prompt);
    *request = (struct chat_request){0};
}
