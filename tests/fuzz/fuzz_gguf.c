/* libFuzzer target: may any bytes at all crash the GGUF reader or the shape check? Whatever loads
 * is read through every accessor, so that a pointer out of the file is seen by AddressSanitizer.
 * Seeds: tests/fuzz/seed_gguf.c. Does not judge the error's text (unit tests do). */
#include "config/model_shape.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static unsigned sum_bytes(const void *p, size_t n)
{
    unsigned sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += ((const unsigned char *)p)[i];
    return sum;
}

static unsigned read_arrays(const struct gguf *g, const char *key)
{
    unsigned sum = 0;
    for (size_t i = 0; i < gguf_n_strs(g, key); i++)
        sum += sum_bytes(gguf_str_at(g, key, i).s, gguf_str_at(g, key, i).n);
    for (size_t i = 0; i < gguf_n_ints(g, key); i++)
        sum += (unsigned)gguf_int_at(g, key, i);
    for (size_t i = 0; i < gguf_n_floats(g, key); i++)
        sum += gguf_float_at(g, key, i) > 0;
    return sum;
}

static unsigned read_all(const struct gguf *g)
{
    static const char *const arrays[] = {"names", "ints", "floats", "tokenizer.ggml.tokens"};
    unsigned sum = 0;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        sum += read_arrays(g, arrays[i]);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        char name[65];
        memcpy(name, t->name.s, t->name.n); /* at most 64 bytes, no NUL: gguf.h */
        name[t->name.n] = '\0';
        if (gguf_find_tensor(g, name) != t)
            abort();
        sum += sum_bytes(t->data, t->size_bytes);
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char path[64];
    struct gguf *g = NULL;
    struct model_shape m;
    struct err_info ei = {{0}};
    int fd = memfd_create("gguf", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n)
        abort();
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    enum err rc = gguf_open(path, &g, &ei);
    if (rc == OK) {
        (void)read_all(g);
        rc = model_shape_from_gguf(g, &m, &ei);
    }
    if (rc == ERR_NOMEM || (rc != OK && (!*ei.text || strchr(ei.text, '\n'))))
        abort();
    gguf_close(g);
    (void)close(fd);
    return 0;
}
