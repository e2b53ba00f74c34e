/* libFuzzer target: may any body crash the request parser? Each input is read as a chat and as a
 * completion. What is accepted must keep the ranges that struct request states; what is refused
 * must have a 4xx and words. Does not go near sockets. */
#include "router/api/request.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(const struct request *r)
{
    if (r->temperature < 0 || r->temperature > 2 || !(r->top_p > 0 && r->top_p <= 1))
        abort();
    if (r->max_tokens < 0 || r->min_tokens < 0 || r->n_logprobs > 20 || r->n_stop > 4)
        abort();
    for (size_t i = 0; i < r->n_ids; i++)
        if (r->ids[i] >= 1000)
            abort();
    for (uint32_t i = 0; i < r->n_stop; i++)
        if (r->stop_bytes[i] == 0)
            abort();
    if (r->kind == REQUEST_CHAT ? !r->messages_json : !r->text)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const struct request_context ctx = {.model = "m", .vocab_size = 1000, .json_depth = 16};
    static const enum request_kind kinds[] = {REQUEST_CHAT, REQUEST_COMPLETION};
    for (size_t i = 0; i < 2; i++) {
        struct request r;
        struct api_error e = {0};
        if (request_parse(&ctx, kinds[i], (const char *)data, n, &r, &e) == OK) {
            check(&r);
            request_fini(&r);
        } else if (e.status < 400 || e.status > 499 || !e.message[0]) {
            abort();
        }
    }
    return 0;
}
