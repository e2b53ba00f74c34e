#pragma once
#include "config/gguf_parse.h"

/* Cursor over a GGUF file's bytes; private to the GGUF reader. */

enum { GGUF_READER_NAME_SHOWN = 64 }; /* of a key or tensor name in errors */

struct gguf_reader {
    const struct gguf *g;
    size_t at;                               /* <= g->size */
    char entry[GGUF_READER_NAME_SHOWN + 32]; /* what is being read: key 3, tensor "x"; or empty */
    struct err_info *ei;
};

size_t gguf_reader_left(const struct gguf_reader *r);
void gguf_reader_set_entry(struct gguf_reader *r, const char *what, struct gguf_str name);

/* Writes "gguf: FILE: ENTRY FIELD at offset N: [VALUE] WHAT" and returns code. */
enum err gguf_reader_fault(const struct gguf_reader *r, enum err code, const char *field,
                           size_t offset, const char *what);
enum err gguf_reader_fault_number(const struct gguf_reader *r, enum err code, const char *field,
                                  size_t offset, uint64_t value, const char *what);

/* One field each; PARSE when the file ends too early. */
NODISCARD enum err gguf_reader_u32(struct gguf_reader *r, const char *field, uint32_t *out);
NODISCARD enum err gguf_reader_u64(struct gguf_reader *r, const char *field, uint64_t *out);
NODISCARD enum err gguf_reader_str(struct gguf_reader *r, const char *field, struct gguf_str *out);
/* A key or a tensor's name: 1..max bytes of printable ASCII. */
NODISCARD enum err gguf_reader_name(struct gguf_reader *r, uint64_t max, struct gguf_str *out);
/* A number of entries that take at least `each` bytes of the file; LIMIT above 2^20. */
NODISCARD enum err gguf_reader_count(struct gguf_reader *r, const char *field, uint64_t each,
                                     size_t *out);

/* Little-endian numbers at any address. */
uint32_t gguf_load_u32(const uint8_t *p);
uint64_t gguf_load_u64(const uint8_t *p);
