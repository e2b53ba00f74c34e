#pragma once
#include "config/base/bytes.h"
#include "config/base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Chat messages -> prompt text, rendered by Jinja2's immutable sandbox in an embedded, isolated
 * Python: byte for byte what transformers' apply_chat_template renders (trim_blocks, lstrip_blocks,
 * loopcontrols, its tojson, raise_exception, strftime_now). One interpreter a process, one owner
 * thread. */

struct chat_template;

struct chat_template_config {
    const char *source; /* Jinja text */
    size_t source_bytes;
    const char *bos_token; /* text, "" when the model has none */
    const char *eos_token;
};

/* Compiles the template. Errors: PARSE (Jinja syntax error with its line), UNSUPPORTED (no
 * libpython modules: names the package), NOMEM. */
NODISCARD enum err chat_template_new(const struct chat_template_config *cfg,
                                     struct chat_template **out, struct err_info *ei);
void chat_template_free(struct chat_template *t);

struct chat_template_request {
    const char
        *messages_json;     /* JSON array of messages, as validated by the API; rendered verbatim */
    const char *tools_json; /* JSON array, or NULL: None */
    const char *kwargs_json; /* JSON object of extra template variables, or NULL */
    bool add_generation_prompt;
    bool continue_final_message; /* the last message is left open (transformers' tag method) */
    bool flatten;  /* content parts are joined with "\n" into a string first, as vLLM does for
                      templates that want strings */
    int64_t now_s; /* strftime_now's clock, seconds since 1970 (local time zone UTC) */
};

/* Whether the template itself walks content parts (message.content as a list). When false, the API
 * flattens. */
bool chat_template_wants_parts(const struct chat_template *t);

/* Appends the rendered UTF-8 text. Errors: PARSE (the template refused with raise_exception:
 * ei->text is its message, as is: a 400 for the client), UNSUPPORTED (a type error inside the
 * template with such input: also a 400), NOMEM. */
NODISCARD enum err chat_template_render(struct chat_template *t,
                                        const struct chat_template_request *req, struct bytes *out,
                                        struct err_info *ei);

/* Control tokens injected from contents (case 9). To keep user text apart from the template's own
 * text, spans of the rendered text that came from message contents are found by rendering with
 * unique markers around each content; `spans` receives [begin,end) byte offsets into the rendered
 * text, ascending, non-overlapping, that must be tokenised with parse_special = false; everything
 * outside them with parse_special = true. *n_spans: in capacity, out number. Errors as
 * chat_template_render; LIMIT when there are more spans than capacity. */
struct text_span {
    size_t begin, end;
};
NODISCARD enum err chat_template_render_spans(struct chat_template *t,
                                              const struct chat_template_request *req,
                                              struct bytes *out, struct text_span *spans,
                                              size_t *n_spans, struct err_info *ei);
