/* What are the messages called? Names for logs and errors; the wire format itself is in
 * message_fields.c (which keys), message_encode.c and message_decode.c. Knows nothing of sockets.
 */
#include "ipc/message.h"

const char *message_kind_name(enum message_kind kind)
{
    switch (kind) {
    case MESSAGE_HELLO:
        return "HELLO";
    case MESSAGE_WELCOME:
        return "WELCOME";
    case MESSAGE_SUBMIT:
        return "SUBMIT";
    case MESSAGE_CANCEL:
        return "CANCEL";
    case MESSAGE_TOKENS:
        return "TOKENS";
    case MESSAGE_FAILED:
        return "FAILED";
    case MESSAGE_STATS:
        return "STATS";
    case MESSAGE_DRAIN:
        return "DRAIN";
    case MESSAGE_STOP:
        return "STOP";
    }
    return "UNKNOWN";
}
