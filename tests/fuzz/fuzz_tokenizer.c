/* Does any text survive the way to ids and back? First byte: vocabulary, options and a span; the
 * rest is the text. Text that is not UTF-8 must be refused; other text must come back byte for byte
 * (in NFC where the family normalises) from the tokens' bytes and from the detokenizer alike. */
#include "router/text/chat_template.h"
#include "router/text/detokenizer.h"
#include "router/text/nfc.h"
#include "router/text/tokenizer.h"
#include "router/text/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { N_VOCABS = 3, NFC_VOCAB = 1, SPAN_UNIT = 4 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tokenizer *open_vocab(int which)
{
    static const char *const PATHS[N_VOCABS] = {"tests/fixtures/tiny/llama-vocab.gguf",
                                                "tests/fixtures/tiny/qwen3-vocab.gguf",
                                                "tests/fixtures/tiny/deepseek_v3-vocab.gguf"};
    static struct tokenizer *tokenizers[N_VOCABS];
    struct gguf *g = NULL;
    if (!tokenizers[which] && (gguf_open(PATHS[which], &g, NULL) != OK ||
                               tokenizer_new(g, &tokenizers[which], NULL) != OK))
        abort();
    gguf_close(g);
    return tokenizers[which];
}

static void check_way_back(const struct tokenizer *t, const struct token_ids *ids,
                           const struct bytes *want)
{
    struct bytes text = {0};
    struct detokenizer d;
    size_t at = 0, n;
    detokenizer_init(&d, t, true);
    for (size_t i = 0; i < ids->n; i++) {
        const char *s = tokenizer_token_bytes(t, ids->ids[i], &n);
        if (n == 0 || n > want->size - at || memcmp(s, want->data + at, n) != 0)
            abort();
        at += n;
        detokenizer_push(&d, ids->ids[i], &text);
    }
    detokenizer_flush(&d, &text);
    if (at != want->size || text.size != want->size)
        abort();
    if (text.size && memcmp(text.data, want->data, text.size) != 0)
        abort();
    bytes_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    int which = data[0] % N_VOCABS;
    struct tokenizer *t = open_vocab(which);
    struct tokenizer_options opt = {.parse_special = data[0] & 4};
    struct text_span span = {(data[0] >> 3 & 3) * SPAN_UNIT,
                             (data[0] >> 5) * SPAN_UNIT + SPAN_UNIT};
    size_t n_spans = span.begin < span.end && span.end < size;
    const char *text = (const char *)data + 1;
    struct token_ids ids = {0};
    struct bytes want = {0};
    bool is_valid = utf8_valid_prefix(text, size - 1) == size - 1;
    enum err rc = tokenizer_encode_spans(t, text, size - 1, &span, n_spans, opt, &ids, NULL);
    if (rc != (is_valid ? OK : ERR_PARSE))
        abort();
    /* special tokens cut the text into stretches that are normalised one by one */
    if (which == NFC_VOCAB && opt.parse_special)
        is_valid = false;
    if (is_valid) {
        if (which != NFC_VOCAB)
            bytes_append(&want, text, size - 1);
        else if (nfc_append(text, size - 1, &want, NULL) != OK)
            abort();
        check_way_back(t, &ids, &want);
    }
    token_ids_fini(&ids);
    bytes_fini(&want);
    return 0;
}
