/* May these bytes be unpacked? msgpack-c allocates whatever a header claims before it looks at what
 * follows, so 5 bytes can ask for 100 GB. Invariant: after OK, no claim exceeds the bytes that are
 * there. Knows nothing of keys or messages. */
#include "ipc/message_scan.h"

#include <stdbool.h>
#include <stdint.h>

struct item {
    size_t head_bytes;   /* type byte and length or value field */
    uint64_t n_payload;  /* bytes that follow (str, bin, ext) */
    uint64_t n_children; /* objects that follow (array; map: keys and values) */
    bool is_container;
};

static uint64_t big_endian(const unsigned char *p, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++)
        v = v << 8 | p[i];
    return v;
}

/* A scalar's bytes behind the type byte, or the width of a length field. 0xc0..0xdf only. */
static size_t field_bytes(unsigned char type)
{
    static const unsigned char bytes[32] = {
        0, 0, 0, 0, 1, 2, 4, 1, 2, 4, 4, 8, 1, 2, 4, 8, /* c0..cf: nil..uint64 */
        1, 2, 4, 8, 0, 0, 0, 0, 0, 1, 2, 4, 2, 4, 2, 4, /* d0..df: int8..map32 */
    };
    return bytes[type - 0xc0];
}

/* False: 0xc1, which the specification never uses, or a header that is cut off. */
static bool read_head(const unsigned char *p, size_t n_left, struct item *out)
{
    unsigned char type = p[0];
    *out = (struct item){.head_bytes = 1};
    if (type <= 0x7f || type >= 0xe0)
        return true;
    if (type <= 0x9f) {
        out->is_container = true;
        out->n_children = type <= 0x8f ? 2 * (uint64_t)(type & 0x0f) : (uint64_t)(type & 0x0f);
        return true;
    }
    if (type <= 0xbf) {
        out->n_payload = type & 0x1f;
        return true;
    }
    if (type == 0xc1)
        return false;
    size_t n_field = field_bytes(type);
    out->head_bytes = 1 + n_field;
    if (out->head_bytes > n_left)
        return false;
    uint64_t value = big_endian(p + 1, n_field);
    if ((type >= 0xc4 && type <= 0xc6) || (type >= 0xd9 && type <= 0xdb))
        out->n_payload = value; /* bin, str */
    else if (type >= 0xc7 && type <= 0xc9)
        out->n_payload = value + 1; /* ext: its type byte too */
    else if (type >= 0xd4 && type <= 0xd8) {
        out->head_bytes = 1;
        out->n_payload = 1 + ((uint64_t)1 << (type - 0xd4)); /* fixext */
    } else if (type >= 0xdc) {
        out->is_container = true;
        out->n_children = type <= 0xdd ? value : 2 * value;
    }
    return true;
}

enum err message_scan(const void *data, size_t size_bytes, struct err_info *ei)
{
    const unsigned char *bytes = data;
    uint64_t open[MESSAGE_DEPTH_MAX + 1] = {1}; /* objects still to come, a level */
    size_t depth = 0, at = 0;
    while (open[0] > 0 || depth > 0) {
        if (open[depth] == 0) {
            depth--;
            continue;
        }
        struct item item;
        if (at == size_bytes)
            return err_set(ei, ERR_PARSE, "message: cut off at byte %zu", at);
        if (!read_head(bytes + at, size_bytes - at, &item))
            return err_set(ei, ERR_PARSE, "message: bad or cut off header at byte %zu", at);
        size_t n_left = size_bytes - at - item.head_bytes;
        if (item.n_payload > n_left || item.n_children > n_left)
            return err_set(ei, ERR_PARSE, "message: length at byte %zu goes past the end", at);
        open[depth]--;
        at += item.head_bytes + (size_t)item.n_payload;
        if (!item.is_container)
            continue;
        if (depth == MESSAGE_DEPTH_MAX)
            return err_set(ei, ERR_LIMIT, "message: nested more than %d deep at byte %zu",
                           MESSAGE_DEPTH_MAX, at);
        open[++depth] = item.n_children;
    }
    if (at != size_bytes)
        return err_set(ei, ERR_PARSE, "message: %zu bytes behind its end", size_bytes - at);
    return OK;
}
