#pragma once
#include "config/base/arena.h"
#include "config/base/bytes.h"
#include "config/base/err.h"
#include "config/fingerprint.h"

#include <stdbool.h>
#include <stdint.h>

/* The protocol page: what router and workers say to each other. One message is one ZeroMQ frame
 * holding one msgpack map with string keys; "t" names the kind. Unknown keys are ignored, missing
 * required ones refused, counts checked against the bytes that are there before anything is
 * allocated.
 *
 *   worker -> router   HELLO  TOKENS  FAILED  STATS
 *   router -> worker   WELCOME  SUBMIT  CANCEL  DRAIN  STOP
 *
 * A worker says HELLO when it is ready, and again whenever it meets a new router. The router
 * answers WELCOME, or STOP when it will not have it. Each sequence a worker was given ends in
 * exactly one TOKENS entry with a finish, or one FAILED, unless it was cancelled: then nothing more
 * need come. */

enum { PROTOCOL_VERSION = 1 };

enum {
    MESSAGE_MAX_TOKENS = 4 * 1024 * 1024, /* of one SUBMIT */
    MESSAGE_MAX_TOP_LOGPROBS = 20,
    MESSAGE_MAX_STOP_IDS = 64,
    MESSAGE_MAX_SEQUENCES = 4096, /* of one TOKENS */
};

enum message_kind {
    MESSAGE_HELLO = 1,
    MESSAGE_WELCOME,
    MESSAGE_SUBMIT,
    MESSAGE_CANCEL,
    MESSAGE_TOKENS,
    MESSAGE_FAILED,
    MESSAGE_STATS,
    MESSAGE_DRAIN,
    MESSAGE_STOP,
};

struct message_hello {
    uint32_t protocol; /* must be PROTOCOL_VERSION */
    uint32_t worker;   /* index in the node, 0.. */
    uint32_t rank;     /* within its tensor-parallel group; 0 leads */
    int32_t pid;
    uint64_t pid_start; /* process start time (process_start_time): tells a reused pid */
    struct fingerprint fingerprint;
    uint32_t lease; /* its lease in the node store */
    uint32_t n_threads;
    char isa[16];
};

struct message_welcome {
    uint32_t protocol;
    int32_t router_pid;
    uint64_t router_start;
};

/* How to choose tokens. All fields are validated by the router; the worker trusts them. */
struct sampling_params {
    float temperature;  /* >= 0; 0 = greedy */
    float top_p;        /* (0, 1]; 1 = off */
    uint32_t top_k;     /* 0 = off */
    float min_p;        /* [0, 1]; 0 = off */
    uint64_t seed;      /* always set: the router draws a missing one */
    uint32_t choice;    /* index of the choice (OpenAI's n): part of the random counter; 0 */
    int32_t n_logprobs; /* -1 = none; else the chosen token's, and this many alternatives (0..20) */
    uint32_t max_tokens; /* >= 1: output tokens in all, those of before a resume included */
    uint32_t min_tokens; /* stop ids cannot be sampled before so many output tokens */
    bool ignore_eos;     /* stop_ids neither stop nor are banned */
    uint32_t n_stop_ids; /* EOS/EOT ids of the model */
    uint32_t stop_ids[MESSAGE_MAX_STOP_IDS];
};

struct message_submit {
    uint64_t id;            /* of the sequence; unique within the router's life */
    uint32_t n_prompt;      /* >= 1 */
    uint32_t n_emitted;     /* output tokens that the client already has (a resume); 0 when new */
    const uint32_t *tokens; /* [n_prompt + n_emitted]; decoded: lives in the arena */
    uint8_t root[16];       /* root key of this tenant's block chain (prefix_hash.h) */
    int32_t priority;       /* higher first; 0 */
    bool is_counted; /* another worker has admitted it: its prompt tokens are accounted already */
    struct sampling_params sampling;
};

struct message_cancel {
    uint64_t id;
};

enum finish_reason {
    FINISH_NONE = 0, /* goes on */
    FINISH_STOP,     /* a stop id was sampled (it is among the tokens, last) */
    FINISH_LENGTH,   /* max_tokens or the window */
};

struct top_logprob {
    uint32_t token;
    float logprob;
};

struct emitted_token {
    uint32_t token;
    float logprob; /* of the raw distribution, before temperature and truncation; only when asked */
    uint32_t n_top;
    struct top_logprob *top; /* [n_top], best first */
};

struct sequence_tokens {
    uint64_t id;
    bool is_admission; /* the first entry for this SUBMIT: n_cached is set; may hold 0 tokens */
    uint32_t n_cached; /* prompt tokens taken from the store at admission; <= n_prompt - 1 */
    uint32_t n_tokens;
    struct emitted_token *tokens;
    enum finish_reason finish;
};

struct message_tokens {
    uint64_t step;
    uint32_t n_sequences;
    struct sequence_tokens *sequences; /* arena on decode; the sender's on encode */
};

struct message_failed {
    uint64_t id;
    enum err code; /* BUSY: may be retried elsewhere; others: the request's own fault */
    char text[256];
};

struct message_stats {
    uint32_t n_running, n_waiting;
    uint64_t n_steps, n_prefill_tokens, n_decode_tokens, n_preemptions, n_cancelled;
    bool is_draining;
};

struct message {
    enum message_kind kind;
    union {
        struct message_hello hello;
        struct message_welcome welcome;
        struct message_submit submit;
        struct message_cancel cancel;
        struct message_tokens tokens;
        struct message_failed failed;
        struct message_stats stats;
    } as; /* DRAIN and STOP carry nothing */
};

/* Appends the encoded message to out. Errors: NOMEM. */
NODISCARD enum err message_encode(const struct message *m, struct bytes *out, struct err_info *ei);
/* Variable parts are copied into the arena (nothing points into data). Errors: PARSE, LIMIT, NOMEM,
 * each naming the message kind and the key. */
NODISCARD enum err message_decode(const void *data, size_t size_bytes, struct arena *arena,
                                  struct message *out, struct err_info *ei);
const char *message_kind_name(enum message_kind kind); /* "SUBMIT" */
