#pragma once
#include "config/gguf.h"
#include "router/text/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Rows of a .jsonl golden, one at a time; fails the test when a line is not JSON. */
struct fixture {
    FILE *file;
    char *line;
    size_t capacity;
    json_t *row; /* current one; freed by the next call */
    int n_rows;
};
void fixture_open(struct fixture *f, const char *path);
bool fixture_next(struct fixture *f);
/* Closes; fails the test unless there were at least this many rows. */
void fixture_close(struct fixture *f, int at_least);

const char *row_str(const json_t *row, const char *key, size_t *n);
bool row_bool(const json_t *row, const char *key);

/* A tokenizer from a GGUF's vocabulary. */
struct tokenizer *load_tokenizer(const char *path);
#define SMOLLM2_GGUF ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"

/* Whole file; NUL-terminated. */
char *read_whole_file(const char *path, size_t *n);

/* A small repeatable stream of random numbers (xorshift64*). */
uint64_t random_next(uint64_t *state);
