/* Which keys has each message, of what type, in what range? One table, so that encoder and decoder
 * cannot disagree. Knows nothing of msgpack. */
#include "ipc/message_fields.h"

#include <float.h>

#define AT(type, member) .offset = offsetof(struct type, member)
#define ANY_U32 .least = 0, .most = UINT32_MAX
#define ANY_I32 .least = INT32_MIN, .most = INT32_MAX

static const struct message_field hello[] = {
    {"protocol", FIELD_U32, AT(message_hello, protocol), ANY_U32},
    {"worker", FIELD_U32, AT(message_hello, worker), ANY_U32},
    {"rank", FIELD_U32, AT(message_hello, rank), ANY_U32},
    {"pid", FIELD_I32, AT(message_hello, pid), .least = 1, .most = INT32_MAX},
    {"pid_start", FIELD_U64, AT(message_hello, pid_start)},
    {"fingerprint", FIELD_BYTES, AT(message_hello, fingerprint),
     .size = sizeof(struct fingerprint)},
    {"lease", FIELD_U32, AT(message_hello, lease), ANY_U32},
    {"n_threads", FIELD_U32, AT(message_hello, n_threads), ANY_U32},
    {"isa", FIELD_TEXT, AT(message_hello, isa), .size = sizeof((struct message_hello *)0)->isa},
};

static const struct message_field welcome[] = {
    {"protocol", FIELD_U32, AT(message_welcome, protocol), ANY_U32},
    {"router_pid", FIELD_I32, AT(message_welcome, router_pid), .least = 1, .most = INT32_MAX},
    {"router_start", FIELD_U64, AT(message_welcome, router_start)},
};

static const struct message_field submit[] = {
    {"id", FIELD_U64, AT(message_submit, id)},
    {"n_prompt", FIELD_U32, AT(message_submit, n_prompt), .least = 1, .most = MESSAGE_MAX_TOKENS},
    {"n_emitted", FIELD_U32, AT(message_submit, n_emitted), .most = MESSAGE_MAX_TOKENS},
    {"root", FIELD_BYTES, AT(message_submit, root),
     .size = sizeof((struct message_submit *)0)->root},
    {"priority", FIELD_I32, AT(message_submit, priority), ANY_I32},
    {"is_counted", FIELD_BOOL, AT(message_submit, is_counted)},
    [SUBMIT_TOKENS] = {"tokens", FIELD_OWN},
    [SUBMIT_SAMPLING] = {"sampling", FIELD_OWN},
};

static const struct message_field sampling[] = {
    {"temperature", FIELD_F32, AT(sampling_params, temperature), .most_f = FLT_MAX},
    {"top_p", FIELD_F32, AT(sampling_params, top_p), .least_f = FLT_TRUE_MIN, .most_f = 1},
    {"top_k", FIELD_U32, AT(sampling_params, top_k), ANY_U32},
    {"min_p", FIELD_F32, AT(sampling_params, min_p), .most_f = 1},
    {"seed", FIELD_U64, AT(sampling_params, seed)},
    {"choice", FIELD_U32, AT(sampling_params, choice), ANY_U32},
    {"n_logprobs", FIELD_I32, AT(sampling_params, n_logprobs), .least = -1,
     .most = MESSAGE_MAX_TOP_LOGPROBS},
    {"max_tokens", FIELD_U32, AT(sampling_params, max_tokens), .least = 1, .most = UINT32_MAX},
    {"min_tokens", FIELD_U32, AT(sampling_params, min_tokens), ANY_U32},
    {"ignore_eos", FIELD_BOOL, AT(sampling_params, ignore_eos)},
    [SAMPLING_STOP_IDS] = {"stop_ids", FIELD_OWN},
};

static const struct message_field cancel[] = {
    {"id", FIELD_U64, AT(message_cancel, id)},
};

static const struct message_field tokens[] = {
    {"step", FIELD_U64, AT(message_tokens, step)},
    [TOKENS_SEQUENCES] = {"sequences", FIELD_OWN},
};

static const struct message_field sequence[] = {
    {"id", FIELD_U64, AT(sequence_tokens, id)},
    {"finish", FIELD_U32, AT(sequence_tokens, finish), .most = FINISH_LENGTH},
    [SEQUENCE_N_CACHED] = {"n_cached", FIELD_OWN, .is_optional = true},
    [SEQUENCE_TOKENS] = {"tokens", FIELD_OWN},
    [SEQUENCE_LOGPROBS] = {"logprobs", FIELD_OWN},
    [SEQUENCE_TOP] = {"top", FIELD_OWN, .is_optional = true},
};

static const struct message_field failed[] = {
    {"id", FIELD_U64, AT(message_failed, id)},
    {"text", FIELD_TEXT, AT(message_failed, text),
     .size = sizeof((struct message_failed *)0)->text},
    [FAILED_CODE] = {"code", FIELD_OWN},
};

static const struct message_field stats[] = {
    {"n_running", FIELD_U32, AT(message_stats, n_running), ANY_U32},
    {"n_waiting", FIELD_U32, AT(message_stats, n_waiting), ANY_U32},
    {"n_steps", FIELD_U64, AT(message_stats, n_steps)},
    {"n_prefill_tokens", FIELD_U64, AT(message_stats, n_prefill_tokens)},
    {"n_decode_tokens", FIELD_U64, AT(message_stats, n_decode_tokens)},
    {"n_preemptions", FIELD_U64, AT(message_stats, n_preemptions)},
    {"n_cancelled", FIELD_U64, AT(message_stats, n_cancelled)},
    {"is_draining", FIELD_BOOL, AT(message_stats, is_draining)},
};

/* the generic code moves an enum as the u32 it is */
_Static_assert(sizeof(enum finish_reason) == 4, "finish travels as u32");

#define TABLE(t)                                                                                   \
    (struct message_fields)                                                                        \
    {                                                                                              \
        (t), sizeof(t) / sizeof((t)[0])                                                            \
    }

struct message_fields message_fields_of(enum message_kind kind)
{
    switch (kind) {
    case MESSAGE_HELLO:
        return TABLE(hello);
    case MESSAGE_WELCOME:
        return TABLE(welcome);
    case MESSAGE_SUBMIT:
        return TABLE(submit);
    case MESSAGE_CANCEL:
        return TABLE(cancel);
    case MESSAGE_TOKENS:
        return TABLE(tokens);
    case MESSAGE_FAILED:
        return TABLE(failed);
    case MESSAGE_STATS:
        return TABLE(stats);
    case MESSAGE_DRAIN:
    case MESSAGE_STOP:
        break;
    }
    return (struct message_fields){0};
}

struct message_fields message_fields_of_sampling(void)
{
    return TABLE(sampling);
}

struct message_fields message_fields_of_sequence(void)
{
    return TABLE(sequence);
}

void *message_fields_base(struct message *m)
{
    switch (m->kind) {
    case MESSAGE_HELLO:
        return &m->as.hello;
    case MESSAGE_WELCOME:
        return &m->as.welcome;
    case MESSAGE_SUBMIT:
        return &m->as.submit;
    case MESSAGE_CANCEL:
        return &m->as.cancel;
    case MESSAGE_TOKENS:
        return &m->as.tokens;
    case MESSAGE_FAILED:
        return &m->as.failed;
    case MESSAGE_STATS:
        return &m->as.stats;
    case MESSAGE_DRAIN:
    case MESSAGE_STOP:
        break;
    }
    return NULL;
}
