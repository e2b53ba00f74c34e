/* Where may merges not reach? Each model family publishes regexes; they are run one after the other
 * over the pieces so far, and both matches and the gaps between them become pieces. White space is
 * spelled out, because PCRE2's \s counts U+180E and the reference engines do not. JIT code is used
 * where the machine allows it; text that outgrows its stack is matched again by the interpreter,
 * so that no text fails. Does not know tokens. */
#include "router/text/pretokenizer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum {
    MAX_EXPRESSIONS = 3,
    JIT_STACK_START_BYTES = 32 * 1024,
    JIT_STACK_MAX_BYTES = 16 * 1024 * 1024,
};

/* White_Space of the Unicode character database, for use inside a class */
#define WS                                                                                         \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"
#define SPACE "[" WS "]"
#define NOT_SPACE "[^" WS "]"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACE_TAIL SPACE "+(?!" NOT_SPACE ")|" SPACE "+"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" SPACE_TAIL
#define WORD_DIGITS_REST(letters, digits, symbols)                                                 \
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?" letters "+|" digits "| ?" symbols "+[\\r\\n]*|" SPACE    \
                "*[\\r\\n]+|" SPACE_TAIL
#define SYMBOLS "[^" WS "\\p{L}\\p{N}]"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K                                                                                      \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTION "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER      \
    "+" LOWER "*" CONTRACTION "?|\\p{N}{1,3}| ?" SYMBOLS "+[\\r\\n/]*|" SPACE                      \
    "*[\\r\\n]+|" SPACE_TAIL
#define CL100K                                                                                     \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?" SYMBOLS                \
    "++[\\r\\n]*+|" SPACE "++$|" SPACE "*[\\r\\n]|" SPACE "+(?!" NOT_SPACE ")|" SPACE
#define CJK "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
#define DEEPSEEK_WORDS                                                                             \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"           \
    "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACE "*[\\r\\n]+|" SPACE_TAIL

struct family {
    const char *names; /* separated by spaces, with one at either end */
    const char *expressions[MAX_EXPRESSIONS];
    bool wants_nfc, ignores_merges, adds_bos;
};

static const struct family FAMILIES[] = {
    {.names = " gpt2 gpt-2 phi-2 ", .expressions = {GPT2}},
    {.names = " smollm starcoder refact command-r ", .expressions = {"\\p{N}", GPT2}},
    {.names = " llama-bpe llama3 llama-v3 ",
     .expressions = {WORD_DIGITS_REST("\\p{L}", "\\p{N}{1,3}", SYMBOLS)},
     .ignores_merges = true,
     .adds_bos = true},
    {.names = " qwen2 deepseek-r1-qwen ",
     .expressions = {WORD_DIGITS_REST("\\p{L}", "\\p{N}", SYMBOLS)},
     .wants_nfc = true},
    {.names = " qwen35 ",
     .expressions = {WORD_DIGITS_REST("[\\p{L}\\p{M}]", "\\p{N}", "[^" WS "\\p{L}\\p{M}\\p{N}]")},
     .wants_nfc = true},
    {.names = " deepseek-v3 ", .expressions = {"\\p{N}{1,3}", CJK, DEEPSEEK_WORDS}},
    {.names = " llama4 gpt-4o ", .expressions = {O200K}, .ignores_merges = true},
    {.names = " cl100k dbrx ", .expressions = {CL100K}, .ignores_merges = true},
};

struct ends {
    size_t *at; /* owned */
    size_t n, capacity;
};

struct pretokenizer {
    const struct family *family;
    pcre2_code *code[MAX_EXPRESSIONS];
    size_t n_codes;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *jit_stack;
    struct ends ends, next; /* pieces so far; those of the expression being run */
};

static const struct family *find_family(const char *name, size_t n)
{
    char key[64];
    if (n == 0 || n + 3 > sizeof key || memchr(name, ' ', n) || memchr(name, 0, n))
        return NULL;
    key[0] = ' ';
    memcpy(key + 1, name, n);
    memcpy(key + 1 + n, " ", 2);
    for (size_t i = 0; i < sizeof FAMILIES / sizeof *FAMILIES; i++)
        if (strstr(FAMILIES[i].names, key))
            return &FAMILIES[i];
    return NULL;
}

static bool compile_expressions(struct pretokenizer *p)
{
    for (size_t i = 0; i < MAX_EXPRESSIONS && p->family->expressions[i]; i++) {
        int code;
        PCRE2_SIZE at;
        p->code[i] = pcre2_compile((PCRE2_SPTR)p->family->expressions[i], PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &code, &at, NULL);
        if (!p->code[i])
            return false;
        p->n_codes++;
        /* refused where memory may not become executable: the interpreter then does the work */
        (void)pcre2_jit_compile(p->code[i], PCRE2_JIT_COMPLETE);
    }
    return true;
}

enum err pretokenizer_new(const char *name, size_t n, struct pretokenizer **out,
                          struct err_info *ei)
{
    const struct family *family = find_family(name, n);
    if (!family)
        return err_set(ei, ERR_UNSUPPORTED, "tokenizer: tokenizer.ggml.pre: no pre-tokeniser %.*s",
                       n < 64 ? (int)n : 64, name);
    struct pretokenizer *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(ei, ERR_NOMEM, "tokenizer: no memory");
    p->family = family;
    p->match = pcre2_match_data_create(1, NULL);
    p->context = pcre2_match_context_create(NULL);
    p->jit_stack = pcre2_jit_stack_create(JIT_STACK_START_BYTES, JIT_STACK_MAX_BYTES, NULL);
    if (!p->match || !p->context || !compile_expressions(p)) {
        pretokenizer_free(p);
        return err_set(ei, ERR_NOMEM, "tokenizer: no memory for the pre-tokeniser");
    }
    /* the expressions are ours and linear: limits made for foreign ones would only refuse text */
    pcre2_set_match_limit(p->context, UINT32_MAX);
    pcre2_set_depth_limit(p->context, UINT32_MAX);
    pcre2_set_heap_limit(p->context, UINT32_MAX);
    if (p->jit_stack)
        pcre2_jit_stack_assign(p->context, NULL, p->jit_stack);
    *out = p;
    return OK;
}

void pretokenizer_free(struct pretokenizer *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n_codes; i++)
        pcre2_code_free(p->code[i]);
    pcre2_match_data_free(p->match);
    pcre2_match_context_free(p->context);
    if (p->jit_stack)
        pcre2_jit_stack_free(p->jit_stack);
    free(p->ends.at);
    free(p->next.at);
    free(p);
}

bool pretokenizer_wants_nfc(const struct pretokenizer *p)
{
    return p->family->wants_nfc;
}

bool pretokenizer_ignores_merges(const struct pretokenizer *p)
{
    return p->family->ignores_merges;
}

bool pretokenizer_adds_bos(const struct pretokenizer *p)
{
    return p->family->adds_bos;
}

static enum err add_end(struct ends *e, size_t at, struct err_info *ei)
{
    if (e->n == e->capacity) {
        size_t capacity = e->capacity ? 2 * e->capacity : 256;
        size_t *grown = reallocarray(e->at, capacity, sizeof *grown);
        if (!grown)
            return err_set(ei, ERR_NOMEM, "tokenizer: no memory");
        e->at = grown;
        e->capacity = capacity;
    }
    e->at[e->n++] = at;
    return OK;
}

static int match_from(struct pretokenizer *p, const pcre2_code *code, const char *piece, size_t n,
                      size_t from)
{
    int rc =
        pcre2_match(code, (PCRE2_SPTR)piece, n, from, PCRE2_NO_UTF_CHECK, p->match, p->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT || rc == PCRE2_ERROR_MATCHLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)piece, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         p->match, p->context);
    return rc;
}

/* One expression over one piece [begin, end) of the text; look-ahead ends with the piece. */
static enum err split_piece(struct pretokenizer *p, const pcre2_code *code, const char *text,
                            size_t begin, size_t end, struct err_info *ei)
{
    size_t n = end - begin, at = 0;
    while (at < n) {
        int rc = match_from(p, code, text + begin, n, at);
        if (rc == PCRE2_ERROR_NOMATCH)
            return add_end(&p->next, end, ei);
        if (rc == PCRE2_ERROR_NOMEMORY)
            return err_set(ei, ERR_NOMEM, "tokenizer: no memory");
        if (rc < 0)
            return err_set(ei, ERR_LIMIT, "tokenizer: cannot split the text: PCRE2 error %d", rc);
        const PCRE2_SIZE *m = pcre2_get_ovector_pointer(p->match);
        enum err e = m[0] > at ? add_end(&p->next, begin + m[0], ei) : OK;
        if (!e)
            e = add_end(&p->next, begin + m[1], ei);
        if (e)
            return e;
        at = m[1];
    }
    return OK;
}

enum err pretokenizer_split(struct pretokenizer *p, const char *text, size_t n, const size_t **ends,
                            size_t *n_pieces, struct err_info *ei)
{
    p->ends.n = 0;
    enum err rc = n ? add_end(&p->ends, n, ei) : OK;
    for (size_t i = 0; i < p->n_codes && !rc; i++) {
        p->next.n = 0;
        size_t begin = 0;
        for (size_t k = 0; k < p->ends.n && !rc; k++) {
            rc = split_piece(p, p->code[i], text, begin, p->ends.at[k], ei);
            begin = p->ends.at[k];
        }
        struct ends done = p->ends;
        p->ends = p->next;
        p->next = done;
    }
    *ends = p->ends.at;
    *n_pieces = p->ends.n;
    return rc;
}
