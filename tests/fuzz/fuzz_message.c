/* Can any bytes hurt the message decoder? Beyond crashes: what it accepts must be encodable, and
 * decode again to the same bytes; what it refuses must say why; memory must stay in proportion.
 * Seeds: the messages of tests/unit/ipc/test_message_decode.c, packed by the Python there. */
#include "ipc/message.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

static void must(int holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    /* an emitted token is 24 bytes for at least 5 on the wire, a sequence 32 and a header for 30 */
    struct arena *arena = arena_new(64 * size_bytes + 4096);
    struct err_info ei = {0};
    struct message m, again;
    struct bytes first = {0}, second = {0};
    must(arena != NULL);
    enum err rc = message_decode(data, size_bytes, arena, &m, &ei);
    if (rc != OK) {
        must(rc == ERR_PARSE || rc == ERR_LIMIT);
        must(ei.text[0] != '\0');
    } else {
        must(message_encode(&m, &first, NULL) == OK);
        arena_free(arena);
        arena = arena_new(0);
        must(message_decode(first.data, first.size, arena, &again, NULL) == OK);
        must(message_encode(&again, &second, NULL) == OK);
        must(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
    }
    bytes_fini(&first);
    bytes_fini(&second);
    arena_free(arena);
    return 0;
}
