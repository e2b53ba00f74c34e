#pragma once
#include "config/base/bytes.h"
#include "router/api/api.h"

/* What stands around router/api in its tests: a dispatch that records, a tokenizer whose first 256
 * ids are bytes, a template of three lines, metrics that count. The test program's own definitions
 * take the place of the router's. State hangs from one struct, reset by fakes_reset. */

enum {
    FAKE_EOS = 256,    /* "<eos>", special, a stop id */
    FAKE_TURN = 257,   /* "<turn>", special */
    FAKE_FAMILY = 258, /* a character of 4 bytes, whole */
    FAKE_VOCAB = 259,
};

struct fakes {
    /* dispatch */
    enum err submit_result;
    uint32_t n_submitted, n_cancelled;
    uint64_t last_id;
    struct dispatch_sink sink;
    struct sampling_params sampling;
    int32_t pinned_worker;
    uint32_t prompt[512];
    uint32_t n_prompt;
    /* metrics */
    uint32_t n_finished[4];
    uint32_t n_first_token, n_inter_token, n_end_to_end;
    char last_route[64];
    int last_status;
    /* template */
    bool refuses;
    char messages[4096];
    /* node */
    bool is_ready, is_draining;
};

extern struct fakes fakes;
void fakes_reset(void);
