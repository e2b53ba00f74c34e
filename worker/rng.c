/* Which random number belongs to this token? A block cipher of ten rounds over a counter: the same
 * counter gives the same number in any process, at any time, in any batch. Knows nothing of
 * sampling; it only names the counter's fields. */
#include "worker/rng.h"

enum { PHILOX_ROUNDS = 10 };

static const uint32_t PHILOX_M0 = 0xD2511F53U, PHILOX_M1 = 0xCD9E8D57U; /* round multipliers */
static const uint32_t PHILOX_W0 = 0x9E3779B9U, PHILOX_W1 = 0xBB67AE85U; /* key increments */

void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0;
        uint64_t p1 = (uint64_t)PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

double rng_uniform(const struct rng_counter *c)
{
    const uint32_t counter[4] = {c->position, c->choice, c->draw, 0};
    const uint32_t key[2] = {(uint32_t)c->seed, (uint32_t)(c->seed >> 32)};
    uint32_t r[4];
    rng_philox(counter, key, r);
    uint64_t bits = ((uint64_t)r[0] << 32 | r[1]) >> 11;
    return (double)bits * 0x1p-53;
}
