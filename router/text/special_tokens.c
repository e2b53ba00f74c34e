/* Does a control token stand here? A trie over the token texts whose edges live in one hash table:
 * one look-up a byte, however many tokens share a beginning ("<|reserved_..." by the hundred).
 * Knows nothing of who may use them: whether text is parsed for them at all is the tokeniser's
 * decision. */
#include "router/text/special_tokens.h"

#include <stdlib.h>

struct edge {
    uint32_t from; /* node; 0 is the root */
    uint32_t to;   /* node; 0 = free slot, since nothing leads to the root */
    unsigned char byte;
};

struct special_tokens {
    struct edge *edges;
    size_t n_slots; /* power of two, at least twice the edges */
    uint32_t *ids;  /* [n_nodes]: token that ends here, VOCAB_NONE */
    uint32_t n_nodes;
    bool starts[256];
};

static bool is_matched(const struct vocab *v, uint32_t id)
{
    enum token_type type = vocab_type(v, id);
    return type == TOKEN_CONTROL || type == TOKEN_USER_DEFINED;
}

static struct edge *edge_slot(const struct special_tokens *s, uint32_t from, unsigned char byte)
{
    uint64_t h = ((uint64_t)from << 8 | byte) * 0x9e3779b97f4a7c15u;
    size_t i = (size_t)(h >> 24) & (s->n_slots - 1);
    while (s->edges[i].to && (s->edges[i].from != from || s->edges[i].byte != byte))
        i = (i + 1) & (s->n_slots - 1);
    return &s->edges[i];
}

static void add_token(struct special_tokens *s, const struct vocab *v, uint32_t id)
{
    size_t n;
    const char *text = vocab_text(v, id, &n);
    uint32_t node = 0;
    s->starts[(unsigned char)text[0]] = true;
    for (size_t i = 0; i < n; i++) {
        struct edge *e = edge_slot(s, node, (unsigned char)text[i]);
        if (!e->to)
            *e = (struct edge){node, s->n_nodes++, (unsigned char)text[i]};
        node = e->to;
    }
    s->ids[node] = id;
}

enum err special_tokens_new(const struct vocab *v, struct special_tokens **out, struct err_info *ei)
{
    size_t n_bytes = 0, n;
    for (uint32_t id = 0; id < vocab_size(v); id++)
        if (is_matched(v, id)) {
            (void)vocab_text(v, id, &n);
            n_bytes += n;
        }
    struct special_tokens *s = calloc(1, sizeof *s);
    if (!s || n_bytes >= UINT32_MAX / 4)
        goto fail;
    for (s->n_slots = 16; s->n_slots < 2 * n_bytes;)
        s->n_slots *= 2;
    s->edges = calloc(s->n_slots, sizeof *s->edges);
    s->ids = malloc((n_bytes + 1) * sizeof *s->ids);
    if (!s->edges || !s->ids)
        goto fail;
    for (size_t i = 0; i <= n_bytes; i++)
        s->ids[i] = VOCAB_NONE;
    s->n_nodes = 1;
    for (uint32_t id = 0; id < vocab_size(v); id++)
        if (is_matched(v, id))
            add_token(s, v, id);
    *out = s;
    return OK;
fail:
    special_tokens_free(s);
    return err_set(ei, ERR_NOMEM, "tokenizer: no memory for the special tokens");
}

void special_tokens_free(struct special_tokens *s)
{
    if (!s)
        return;
    free(s->edges);
    free(s->ids);
    free(s);
}

bool special_tokens_may_start(const struct special_tokens *s, unsigned char byte)
{
    return s->starts[byte];
}

bool special_tokens_match(const struct special_tokens *s, const char *text, size_t n, uint32_t *id,
                          size_t *n_bytes)
{
    bool is_found = false;
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        node = edge_slot(s, node, (unsigned char)text[i])->to;
        if (!node)
            break;
        if (s->ids[node] == VOCAB_NONE)
            continue;
        *id = s->ids[node];
        *n_bytes = i + 1;
        is_found = true;
    }
    return is_found;
}
