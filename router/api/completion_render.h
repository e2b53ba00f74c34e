#pragma once
#include "router/api/completion.h"
#include "router/api/logprobs.h"
#include "router/dispatch.h"
#include "router/text/detokenizer.h"
#include "router/text/stop_strings.h"

/* A completion's state, and its JSON. Pure: state in, text out (what is sent leaves the state). */

enum { COMPLETION_DEFAULT_MAX_TOKENS = 16 };

struct completion {
    struct api *api;
    struct http_request *http;
    struct request request;
    uint64_t dispatch_id;
    char id[48];
    int64_t created;
    struct detokenizer detokenizer;
    struct stop_strings stops;
    struct logprobs logprobs;
    struct bytes decoded; /* scratch: text of the token at hand */
    struct bytes text;    /* shown for sure; plain: all of it, stream: not sent yet */
    size_t n_decoded;     /* bytes that have left the detokeniser */
    size_t n_chars;       /* code points of those */
    size_t n_shown;       /* bytes that have left the stop strings */
    uint64_t start_us, last_token_us;
    uint32_t n_prompt, n_cached, n_output;
    bool is_begun; /* the stream's head is sent */
};

/* The plain answer. */
void completion_render_body(struct completion *c, enum finish_reason why, struct bytes *out);
/* The events that are due: the text there is, and with why != FINISH_NONE the end. Empties
 * c->text. */
void completion_render_events(struct completion *c, enum finish_reason why, struct bytes *out);
