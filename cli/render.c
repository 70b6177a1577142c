/* hearth render: conversations as the text that goes to the model, for checking the chat form against another implementation. */
#include <stddef.h>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/json_stdio.h"
#include "common/json.h"
#include "common/memory.h"
#include "model/chat_render.h"

struct render_options {
    const char *model;
    int json;
};

static const struct option_row rows[] = {
    {"model", OPTION_TEXT, offsetof(struct render_options, model), NULL, 0, 0, NULL, "DIR", "the model whose chat form is used"},
    {"json", OPTION_FLAG, offsetof(struct render_options, json), NULL, 0, 0, NULL, NULL, "JSON in, JSON out (the only form so far)"},
};

static enum status render_one(void *ctx, const json_t *item, json_t *out, struct error *err)
{
    (void)ctx;
    if (!json_is_object(item))
        return error_set(err, STATUS_INVALID, "must be an object with messages, tools and options");
    struct chat_prompt prompt = {0};
    enum status status = chat_render(&chat_form_glm52, json_object_get(item, "messages"), json_object_get(item, "tools"),
                                     json_object_get(item, "options"), &prompt, err);
    if (!status)
        json_array_append_new(out, json_stringn(prompt.text.bytes, prompt.text.length));
    chat_prompt_free(&prompt);
    return status;
}

/* All models that we run speak the GLM-5.2 form; the folder must still be a model, or a typing mistake would go unseen. */
static enum status check_model(const char *directory, struct error *err)
{
    char *path = xasprintf("%s/config.json", directory);
    json_t *config = NULL;
    enum status status = json_read_file(&config, path, 16 << 20, err);
    json_decref(config);
    free(path);
    return status;
}

static enum status run(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    (void)arguments, (void)n_arguments;
    const struct render_options *o = options;
    if (!o->model)
        return command_usage(err, "--model DIR is missing");
    if (!o->json)
        return command_usage(err, "--json is missing");
    enum status status = check_model(o->model, err);
    return status ? status : json_stdio_each(render_one, NULL, err);
}

const struct command render_command = {
    .name = "render",
    .arguments = "",
    .summary = "Show conversations as the text that the model reads.",
    .details = "Reads an array of {messages, tools, options} on standard input and prints an array of strings.",
    .options = rows,
    .n_options = sizeof rows / sizeof *rows,
    .options_bytes = sizeof(struct render_options),
    .run = run,
};
