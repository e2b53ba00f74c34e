/* Which log-probabilities belong to the text that is sent now? Entries wait until their token's
 * text has been shown. Keeps: entries leave in order and once; a key of the completion shape's
 * top_logprobs occurs once. Does not compute probabilities. */
#include "router/api/logprobs.h"

#include "router/api/json_text.h"
#include "router/text/utf8.h"

#include <string.h>

void logprobs_fini(struct logprobs *l)
{
    bytes_fini(&l->entries);
    *l = (struct logprobs){0};
}

void logprobs_push(struct logprobs *l, const struct emitted_token *token, size_t begin, size_t end,
                   size_t n_chars)
{
    struct logprobs_entry e = {.begin = begin, .end = end, .n_chars = n_chars, .token = *token};
    if (e.token.n_top > MESSAGE_MAX_TOP_LOGPROBS)
        e.token.n_top = MESSAGE_MAX_TOP_LOGPROBS;
    if (e.token.n_top > 0) /* else top may be NULL */
        memcpy(e.top, token->top, e.token.n_top * sizeof *e.top);
    bytes_append(&l->entries, &e, sizeof e);
}

static size_t n_entries(const struct logprobs *l)
{
    return l->entries.size / sizeof(struct logprobs_entry);
}

static struct logprobs_entry *entry_at(const struct logprobs *l, size_t i)
{
    /* malloc'ed, and every element has the size of its type: aligned */
    struct logprobs_entry *all = (struct logprobs_entry *)(void *)l->entries.data;
    all[i].token.top = all[i].top;
    return &all[i];
}

static bool is_whole(const char *s, size_t n)
{
    return utf8_valid_prefix(s, n) == n;
}

void logprobs_append_token(const struct tokenizer *t, uint32_t id, struct bytes *out)
{
    size_t n = 0;
    const char *s = tokenizer_token_bytes(t, id, &n);
    if (n == 0 || is_whole(s, n)) {
        json_text_append_string(out, s ? s : "", n);
        return;
    }
    bytes_append_str(out, "\"bytes:");
    for (size_t i = 0; i < n; i++)
        bytes_printf(out, "\\\\x%02x", (unsigned char)s[i]);
    bytes_append_str(out, "\"");
}

/* --- chat
 * ------------------------------------------------------------------------------------------- */

static void append_chat_token(const struct tokenizer *t, uint32_t id, float logprob,
                              struct bytes *out)
{
    size_t n = 0;
    const char *s = tokenizer_token_bytes(t, id, &n);
    bytes_append_str(out, "{\"token\":");
    logprobs_append_token(t, id, out);
    bytes_append_str(out, ",\"logprob\":");
    json_text_append_logprob(out, logprob);
    bytes_append_str(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++)
        bytes_printf(out, "%s%u", i ? "," : "", (unsigned)(unsigned char)s[i]);
    bytes_append_str(out, "]");
}

static void render_chat(const struct logprobs *l, const struct tokenizer *t, size_t to,
                        struct bytes *out)
{
    bytes_append_str(out, "{\"content\":[");
    for (size_t i = l->n_left; i < to; i++) {
        const struct emitted_token *e = &entry_at(l, i)->token;
        bytes_append_str(out, i > l->n_left ? "," : "");
        append_chat_token(t, e->token, e->logprob, out);
        bytes_append_str(out, ",\"top_logprobs\":[");
        for (uint32_t j = 0; j < e->n_top; j++) {
            bytes_append_str(out, j ? "," : "");
            append_chat_token(t, e->top[j].token, e->top[j].logprob, out);
            bytes_append_str(out, "}");
        }
        bytes_append_str(out, "]}");
    }
    bytes_append_str(out, "],\"refusal\":null}");
}

/* --- completions
 * ------------------------------------------------------------------------------------ */

static bool is_same_text(const struct tokenizer *t, uint32_t a, uint32_t b)
{
    size_t n, m;
    const char *s = tokenizer_token_bytes(t, a, &n), *r = tokenizer_token_bytes(t, b, &m);
    return a == b || (n == m && memcmp(s, r, n) == 0);
}

/* The alternatives as a map, and the chosen token's own where it is not among them. */
static void append_top_map(const struct tokenizer *t, const struct emitted_token *e,
                           struct bytes *out)
{
    bytes_append_str(out, "{");
    bool has_chosen = false;
    for (uint32_t i = 0; i < e->n_top; i++) {
        bool is_repeated = false;
        for (uint32_t j = 0; j < i && !is_repeated; j++)
            is_repeated = is_same_text(t, e->top[i].token, e->top[j].token);
        if (is_repeated)
            continue;
        has_chosen |= is_same_text(t, e->top[i].token, e->token);
        bytes_append_str(out, i ? "," : "");
        logprobs_append_token(t, e->top[i].token, out);
        bytes_append_str(out, ":");
        json_text_append_logprob(out, e->top[i].logprob);
    }
    if (!has_chosen) {
        bytes_append_str(out, e->n_top ? "," : "");
        logprobs_append_token(t, e->token, out);
        bytes_append_str(out, ":");
        json_text_append_logprob(out, e->logprob);
    }
    bytes_append_str(out, "}");
}

static void render_completion(const struct logprobs *l, const struct tokenizer *t, size_t to,
                              struct bytes *out)
{
    bytes_append_str(out, "{\"tokens\":[");
    for (size_t i = l->n_left; i < to; i++) {
        bytes_append_str(out, i > l->n_left ? "," : "");
        logprobs_append_token(t, entry_at(l, i)->token.token, out);
    }
    bytes_append_str(out, "],\"token_logprobs\":[");
    for (size_t i = l->n_left; i < to; i++) {
        bytes_append_str(out, i > l->n_left ? "," : "");
        json_text_append_logprob(out, entry_at(l, i)->token.logprob);
    }
    bytes_append_str(out, "],\"top_logprobs\":[");
    for (size_t i = l->n_left; i < to; i++) {
        bytes_append_str(out, i > l->n_left ? "," : "");
        append_top_map(t, &entry_at(l, i)->token, out);
    }
    bytes_append_str(out, "],\"text_offset\":[");
    for (size_t i = l->n_left; i < to; i++)
        bytes_printf(out, "%s%zu", i > l->n_left ? "," : "", entry_at(l, i)->n_chars);
    bytes_append_str(out, "]}");
}

size_t logprobs_n_due(const struct logprobs *l, size_t shown, bool is_last)
{
    size_t to = l->n_left;
    while (to < n_entries(l) &&
           (entry_at(l, to)->end <= shown || (is_last && entry_at(l, to)->begin < shown)))
        to++;
    return to - l->n_left;
}

void logprobs_render(struct logprobs *l, enum request_kind kind, const struct tokenizer *t,
                     size_t shown, bool is_last, struct bytes *out)
{
    size_t n = logprobs_n_due(l, shown, is_last);
    if (n == 0 && !is_last)
        bytes_append_str(out, "null");
    else if (kind == REQUEST_CHAT)
        render_chat(l, t, l->n_left + n, out);
    else
        render_completion(l, t, l->n_left + n, out);
    l->n_left += n;
}
