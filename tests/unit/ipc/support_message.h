#pragma once
#include "ipc/message.h"

/* Random messages that are legal, for tests of the codec and of the channel. */

struct random_source {
    uint64_t state;
};

struct random_source random_source_new(uint64_t seed);
uint64_t random_next(struct random_source *r);
uint32_t random_below(struct random_source *r, uint32_t n); /* 0..n-1; n >= 1 */

/* Variable parts come from the arena. */
struct message random_message(struct random_source *r, enum message_kind kind, struct arena *a);

/* NULL when equal, else the name of the field that differs. Bit by bit: -0.0 is not 0.0. */
const char *message_difference(const struct message *a, const struct message *b);
