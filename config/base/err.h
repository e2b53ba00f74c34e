#pragma once

/* How a function says that it failed. A fallible function returns `enum err`; the words for a
 * person go into an optional `struct err_info`, as "who: what: which". Logged once, where it is
 * handled. */

#define NODISCARD __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

enum err {
    OK = 0,
    ERR_PARSE,       /* bytes from outside that mean nothing */
    ERR_NOMEM,       /* no memory of the process's own */
    ERR_IO,          /* the system refused a file, socket or mapping */
    ERR_LIMIT,       /* a stated limit is exceeded; a smaller input would work */
    ERR_BUSY,        /* no room now; the same call may work later */
    ERR_GONE,        /* the peer, or what was named, is not there any more */
    ERR_UNSUPPORTED, /* well-formed, but not something we do */
    ERR_DEVICE,      /* an accelerator failed */
};

enum { ERR_TEXT_BYTES = 512 };

struct err_info {
    char text[ERR_TEXT_BYTES]; /* one line, NUL-terminated, never empty after err_set */
};

/* Writes the formatted text into ei (may be NULL; cut to fit) and returns code, so that a failure
 * is one line: return err_set(ei, ERR_IO, "gguf: cannot open %s", path); Any thread. */
enum err err_set(struct err_info *ei, enum err code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* "PARSE", "IO", ...; "OK" for OK. Static text. */
const char *err_name(enum err code);
