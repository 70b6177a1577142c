/* A conversation as the text that the model was trained on (docs/MODEL.md, "Chat form"; spec section 8). The layout of each GLM version is
 * a row of a table: no template language is interpreted, so no file can run anything. */
#ifndef HEARTH_MODEL_CHAT_RENDER_H
#define HEARTH_MODEL_CHAT_RENDER_H

#include <jansson.h>
#include <stddef.h>

#include "common/error.h"
#include "common/memory.h"
#include "model/tokenizer.h"

/* What differs between versions. Literals are the template's own text. */
struct chat_form {
    const char *name;
    const char *start;
    const char *effort_high, *effort_max; /* the line with the effort; shown while thinking is on */
    const char *dropped_reasoning;        /* stands for the reasoning of an earlier turn that is not shown */
    const char *open_reasoning;           /* ends the prompt when thinking is on */
    const char *no_reasoning;             /* ends the prompt when it is off */
};

extern const struct chat_form chat_form_glm52;

/* The rendered prompt. Zero-initialise; free with chat_prompt_free. */
struct chat_prompt {
    struct text text; /* all of it */
    struct text_span
        *spans; /* [n_spans], in order, covering text: the template's literals and what people wrote, ready for tokenizer_encode */
    size_t n_spans, spans_capacity;
    int opens_reasoning; /* the model's answer starts inside its reasoning */
};

/* Renders messages (array) with tools (array, null or NULL) and options (object, null or NULL: add_generation_prompt, enable_thinking,
 * reasoning_effort, clear_thinking, each true or false as Python sees its value) into *prompt, which must be empty.
 *
 * As the vendor's template, and where servers must differ: null content is the empty string, `arguments` given as a JSON string is parsed,
 * role developer is system. Anything of the wrong shape fails (STATUS_INVALID) with a sentence that names message, field and what was
 * expected; *prompt is empty then. Tool messages are rendered in the order given: putting them in the order of the calls is the caller's
 * work. */
enum status chat_render(const struct chat_form *form, const json_t *messages, const json_t *tools, const json_t *options,
                        struct chat_prompt *prompt, struct error *err);

void chat_prompt_free(struct chat_prompt *prompt);

#endif
