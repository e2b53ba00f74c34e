/* Who owns the pieces of a request? Its arena: chunks in a list, bump allocation, freed as one. */
#include "config/base/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 16 * 1024 };

struct chunk {
    struct chunk *next;
    size_t used, capacity;
    alignas(max_align_t) unsigned char data[];
};

struct arena {
    struct chunk *head;
    size_t limit_bytes, total_bytes;
};

struct arena *arena_new(size_t limit_bytes)
{
    struct arena *a = calloc(1, sizeof *a);
    if (a)
        a->limit_bytes = limit_bytes;
    return a;
}

void arena_free(struct arena *a)
{
    if (!a)
        return;
    while (a->head) {
        struct chunk *c = a->head;
        a->head = c->next;
        free(c);
    }
    free(a);
}

void arena_reset(struct arena *a)
{
    while (a->head && a->head->next) {
        struct chunk *c = a->head;
        a->head = c->next;
        free(c);
    }
    /* the oldest chunk stays; a large one would only hoard */
    if (a->head && a->head->capacity > CHUNK_BYTES) {
        free(a->head);
        a->head = NULL;
    }
    if (a->head)
        a->head->used = 0;
    a->total_bytes = 0;
}

void *arena_alloc(struct arena *a, size_t size_bytes)
{
    if (size_bytes == 0)
        size_bytes = 1;
    if (size_bytes > SIZE_MAX / 2)
        return NULL;
    size_t need = (size_bytes + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);
    if (a->limit_bytes && need > a->limit_bytes - a->total_bytes)
        return NULL;
    if (!a->head || a->head->capacity - a->head->used < need) {
        size_t capacity = need > CHUNK_BYTES ? need : CHUNK_BYTES;
        struct chunk *c = malloc(sizeof *c + capacity);
        if (!c)
            return NULL;
        *c = (struct chunk){.next = a->head, .capacity = capacity};
        a->head = c;
    }
    void *p = a->head->data + a->head->used;
    a->head->used += need;
    a->total_bytes += need;
    memset(p, 0, need);
    return p;
}

void *arena_alloc_array(struct arena *a, size_t n, size_t each_bytes)
{
    size_t size_bytes;
    if (__builtin_mul_overflow(n, each_bytes, &size_bytes))
        return NULL;
    return arena_alloc(a, size_bytes);
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    if (n == SIZE_MAX)
        return NULL;
    char *p = arena_alloc(a, n + 1);
    if (p && n)
        memcpy(p, s, n);
    return p;
}
