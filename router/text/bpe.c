/* In which order do bytes grow together? Symbols form a linked list; every neighbouring pair that a
 * merge knows waits in a heap by (rank, position). A popped pair counts only if its left symbol
 * still has that rank to its right: stale entries are skipped, never searched for. So a megabyte of
 * one letter costs O(n log n). Knows no regexes and no special tokens. */
#include "router/text/bpe.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define KEY_MERGES "tokenizer.ggml.merges"

/* beyond what an enum may hold */
#define NO_RANK UINT32_MAX
#define NOBODY UINT32_MAX
#define MAX_PIECE_BYTES ((size_t)1 << 31)

struct merge {
    uint32_t left, right; /* ids; left NOBODY = free slot */
    uint32_t rank, result;
};

struct symbol {
    uint32_t id;
    uint32_t previous, next; /* index or NOBODY */
    uint32_t rank;           /* of the merge with the next one; NO_RANK: none */
    uint32_t merged;         /* id that this merge gives */
};

struct bpe {
    struct merge *merges; /* open addressing */
    size_t n_slots;       /* power of two, at least twice the merges */
    uint32_t byte_id[256];
    struct symbol *symbols;
    uint64_t *heap; /* rank << 32 | index of the left symbol */
    uint32_t *ids;
    size_t n_heap, capacity; /* capacity: bytes of the longest piece there is room for */
};

static struct merge *merge_slot(const struct bpe *b, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    size_t i = (size_t)(h >> 24) & (b->n_slots - 1);
    while (b->merges[i].left != NOBODY &&
           (b->merges[i].left != left || b->merges[i].right != right))
        i = (i + 1) & (b->n_slots - 1);
    return &b->merges[i];
}

static enum err add_merge(struct bpe *b, const struct vocab *v, struct gguf_str s, uint32_t rank,
                          struct err_info *ei)
{
    /* the space may be the first token's own first byte, hence from the second byte on */
    const char *space = s.n > 2 ? memchr(s.s + 1, ' ', s.n - 2) : NULL;
    if (!space)
        return err_set(ei, ERR_PARSE, "tokenizer: " KEY_MERGES "[%u]: not two tokens", rank);
    size_t n_left = (size_t)(space - s.s), n_right = s.n - n_left - 1;
    uint32_t left = vocab_find(v, s.s, n_left), right = vocab_find(v, space + 1, n_right);
    if (left == VOCAB_NONE || right == VOCAB_NONE)
        return err_set(ei, ERR_PARSE, "tokenizer: " KEY_MERGES "[%u]: %s part is no token", rank,
                       left == VOCAB_NONE ? "first" : "second");
    char *joined = malloc(n_left + n_right);
    if (!joined)
        return err_set(ei, ERR_NOMEM, "tokenizer: no memory");
    memcpy(joined, s.s, n_left);
    memcpy(joined + n_left, space + 1, n_right);
    uint32_t result = vocab_find(v, joined, n_left + n_right);
    free(joined);
    if (result == VOCAB_NONE)
        return err_set(ei, ERR_PARSE, "tokenizer: " KEY_MERGES "[%u]: its result is no token",
                       rank);
    /* of two equal merges the later one counts, as in the reference */
    *merge_slot(b, left, right) = (struct merge){left, right, rank, result};
    return OK;
}

static enum err load_merges(struct bpe *b, const struct gguf *g, const struct vocab *v,
                            struct err_info *ei)
{
    size_t n = gguf_n_strs(g, KEY_MERGES);
    if (n == 0 || n >= NO_RANK / 4)
        return err_set(ei, ERR_PARSE, "tokenizer: " KEY_MERGES ": %zu merges", n);
    for (b->n_slots = 16; b->n_slots < 2 * n;)
        b->n_slots *= 2;
    b->merges = malloc(b->n_slots * sizeof *b->merges);
    if (!b->merges)
        return err_set(ei, ERR_NOMEM, "tokenizer: no memory for %zu merges", n);
    for (size_t i = 0; i < b->n_slots; i++)
        b->merges[i].left = NOBODY;
    for (size_t i = 0; i < n; i++) {
        enum err rc = add_merge(b, v, gguf_str_at(g, KEY_MERGES, i), (uint32_t)i, ei);
        if (rc)
            return rc;
    }
    return OK;
}

enum err bpe_new(const struct gguf *g, const struct vocab *vocab, struct bpe **out,
                 struct err_info *ei)
{
    struct bpe *b = calloc(1, sizeof *b);
    if (!b)
        return err_set(ei, ERR_NOMEM, "tokenizer: no memory");
    for (int byte = 0; byte < 256; byte++) {
        char text[2];
        uint32_t n = vocab_byte_char((unsigned char)byte, text);
        b->byte_id[byte] = vocab_find(vocab, text, n);
    }
    enum err rc = load_merges(b, g, vocab, ei);
    if (rc) {
        bpe_free(b);
        return rc;
    }
    *out = b;
    return OK;
}

void bpe_free(struct bpe *b)
{
    if (!b)
        return;
    free(b->merges);
    free(b->symbols);
    free(b->heap);
    free(b->ids);
    free(b);
}

static void sift_down(uint64_t *heap, size_t n, size_t at)
{
    uint64_t moving = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= n)
            break;
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (moving <= heap[child])
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}

static void heap_push(struct bpe *b, uint64_t key)
{
    size_t at = b->n_heap++;
    while (at > 0 && b->heap[(at - 1) / 2] > key) {
        b->heap[at] = b->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    b->heap[at] = key;
}

static uint64_t heap_pop(struct bpe *b)
{
    uint64_t least = b->heap[0];
    b->heap[0] = b->heap[--b->n_heap];
    if (b->n_heap)
        sift_down(b->heap, b->n_heap, 0);
    return least;
}

/* Looks up what symbol i gives with its right neighbour; true if there is such a merge. */
static bool rank_pair(struct bpe *b, uint32_t i)
{
    struct symbol *s = &b->symbols[i];
    s->rank = NO_RANK;
    if (s->next == NOBODY)
        return false;
    const struct merge *m = merge_slot(b, s->id, b->symbols[s->next].id);
    if (m->left == NOBODY)
        return false;
    s->rank = m->rank;
    s->merged = m->result;
    return true;
}

static enum err reserve(struct bpe *b, size_t n, struct err_info *ei)
{
    if (n <= b->capacity)
        return OK;
    if (n >= MAX_PIECE_BYTES)
        return err_set(ei, ERR_LIMIT, "tokenizer: a word of %zu bytes", n);
    size_t capacity = 256;
    while (capacity < n)
        capacity *= 2;
    free(b->symbols);
    free(b->heap);
    free(b->ids);
    b->capacity = 0;
    b->symbols = reallocarray(NULL, capacity, sizeof *b->symbols);
    /* n - 1 pairs at first, and each of at most n - 1 merges takes one away and adds two */
    b->heap = reallocarray(NULL, 2 * capacity, sizeof *b->heap);
    b->ids = reallocarray(NULL, capacity, sizeof *b->ids);
    if (!b->symbols || !b->heap || !b->ids)
        return err_set(ei, ERR_NOMEM, "tokenizer: no memory for a word of %zu bytes", n);
    b->capacity = capacity;
    return OK;
}

static void merge_at(struct bpe *b, uint32_t i)
{
    struct symbol *s = &b->symbols[i];
    struct symbol *gone = &b->symbols[s->next];
    s->id = s->merged;
    s->next = gone->next;
    gone->rank = NO_RANK;
    if (s->next != NOBODY)
        b->symbols[s->next].previous = i;
    if (rank_pair(b, i))
        heap_push(b, (uint64_t)s->rank << 32 | i);
    if (s->previous != NOBODY && rank_pair(b, s->previous))
        heap_push(b, (uint64_t)b->symbols[s->previous].rank << 32 | s->previous);
}

enum err bpe_encode(struct bpe *b, const char *piece, size_t n, const uint32_t **ids, size_t *n_ids,
                    struct err_info *ei)
{
    enum err rc = reserve(b, n, ei);
    if (rc)
        return rc;
    uint32_t n_symbols = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t id = b->byte_id[(unsigned char)piece[i]];
        if (id != VOCAB_NONE) {
            b->symbols[n_symbols] =
                (struct symbol){.id = id, .previous = n_symbols - 1, .next = n_symbols + 1};
            n_symbols++;
        }
    }
    *n_ids = 0;
    *ids = b->ids;
    if (n_symbols == 0)
        return OK;
    b->symbols[n_symbols - 1].next = NOBODY; /* previous of the first is 0 - 1 = NOBODY */
    b->n_heap = 0;
    for (uint32_t i = 0; i < n_symbols; i++)
        if (rank_pair(b, i))
            b->heap[b->n_heap++] = (uint64_t)b->symbols[i].rank << 32 | i;
    for (size_t i = b->n_heap / 2; i-- > 0;)
        sift_down(b->heap, b->n_heap, i);
    while (b->n_heap) {
        uint64_t top = heap_pop(b);
        uint32_t i = (uint32_t)top;
        if (b->symbols[i].rank == top >> 32)
            merge_at(b, i);
    }
    for (uint32_t i = 0; i != NOBODY; i = b->symbols[i].next)
        b->ids[(*n_ids)++] = b->symbols[i].id;
    return OK;
}
