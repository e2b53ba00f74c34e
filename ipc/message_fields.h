#pragma once
#include "ipc/message.h"

/* The keys of each message, once, for the encoder and the decoder. A plain field is a key with one
 * value at an offset of the message's struct; a FIELD_OWN one has a shape of its own:
 *
 *   SUBMIT     tokens     bin: n_prompt + n_emitted little-endian u32
 *              sampling   map of the sampling fields
 *   sampling   stop_ids   bin: little-endian u32
 *   TOKENS     sequences  array of maps of the sequence fields
 *   a sequence n_cached   only in an admission: its presence is is_admission
 *              tokens     bin: little-endian u32
 *              logprobs   array: one float a token (-inf is legal)
 *              top        absent when no token has alternatives; else an array: for each token an
 *                         array [token, logprob, token, logprob, ...], best first
 *   FAILED     code       str: err_name */

enum field_type {
    FIELD_U32,
    FIELD_U64,
    FIELD_I32,
    FIELD_F32,
    FIELD_BOOL,
    FIELD_BYTES, /* bin of exactly size bytes */
    FIELD_TEXT,  /* str, NUL-terminated in a char array of size bytes */
    FIELD_OWN,
};

struct message_field {
    const char *key;
    enum field_type type;
    bool is_optional; /* FIELD_OWN only */
    size_t offset;
    size_t size; /* BYTES, TEXT */
    /* U32 and I32: least..most; F32: least_f..most_f, which excludes NaN */
    int64_t least, most;
    float least_f, most_f;
};

enum { MESSAGE_FIELDS_MAX = 16 }; /* of one map, "t" not counted */

struct message_fields {
    const struct message_field *fields;
    size_t n;
};

/* Of the map of one message; n = 0 for DRAIN and STOP. */
struct message_fields message_fields_of(enum message_kind kind);
struct message_fields message_fields_of_sampling(void); /* offsets in struct sampling_params */
struct message_fields message_fields_of_sequence(void); /* offsets in struct sequence_tokens */

/* The struct of this kind inside the union; NULL for DRAIN and STOP. */
void *message_fields_base(struct message *m);

/* Where the fields with a shape of their own stand in their tables. */
enum { SUBMIT_TOKENS = 6, SUBMIT_SAMPLING = 7 };
enum { SAMPLING_STOP_IDS = 10 };
enum { TOKENS_SEQUENCES = 1 };
enum { SEQUENCE_N_CACHED = 2, SEQUENCE_TOKENS = 3, SEQUENCE_LOGPROBS = 4, SEQUENCE_TOP = 5 };
enum { FAILED_CODE = 2 };
