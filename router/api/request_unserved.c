/* Which fields mean something that we do not do? A table of the options of OpenAI and vLLM with the
 * value at which each changes nothing: any other value is refused by the field's name, so that no
 * client believes it was heard when it was not. Keeps: each known field stands in exactly one
 * table. Does not validate served fields. */
#include "router/api/request.h"

#include <string.h>

enum neutral {
    NEUTRAL_NULL,    /* only null */
    NEUTRAL_FALSE,   /* null or false */
    NEUTRAL_STRING,  /* null or "" */
    NEUTRAL_ARRAY,   /* null or [] */
    NEUTRAL_OBJECT,  /* null or {} */
    NEUTRAL_TRUE,    /* null or true */
    NEUTRAL_ZERO,    /* null or 0 */
    NEUTRAL_ONE,     /* null or 1 */
    NEUTRAL_WORD,    /* null or one of `words` */
    NEUTRAL_TYPE,    /* null or {"type": words} */
    NEUTRAL_TEXTS,   /* null or ["text"] */
    NEUTRAL_ANYTHING /* changes nothing in a text that is made here */
};

struct unserved {
    const char *name;
    enum neutral neutral;
    const char *words; /* separated by spaces */
};

static const struct unserved unserved[] = {
    {"n", NEUTRAL_ONE, NULL},
    {"best_of", NEUTRAL_ONE, NULL},
    {"echo", NEUTRAL_FALSE, NULL},
    {"suffix", NEUTRAL_STRING, NULL},
    {"logit_bias", NEUTRAL_OBJECT, NULL},
    {"presence_penalty", NEUTRAL_ZERO, NULL},
    {"frequency_penalty", NEUTRAL_ZERO, NULL},
    {"repetition_penalty", NEUTRAL_ONE, NULL},
    {"length_penalty", NEUTRAL_ONE, NULL},
    {"use_beam_search", NEUTRAL_FALSE, NULL},
    {"early_stopping", NEUTRAL_FALSE, NULL},
    {"tools", NEUTRAL_ARRAY, NULL},
    {"tool_choice", NEUTRAL_WORD, "none auto"},
    {"functions", NEUTRAL_ARRAY, NULL},
    {"function_call", NEUTRAL_WORD, "none auto"},
    {"response_format", NEUTRAL_TYPE, "text"},
    {"modalities", NEUTRAL_TEXTS, NULL},
    {"audio", NEUTRAL_NULL, NULL},
    {"prediction", NEUTRAL_NULL, NULL},
    {"reasoning_effort", NEUTRAL_WORD, "none"},
    {"verbosity", NEUTRAL_WORD, "medium"},
    {"web_search_options", NEUTRAL_NULL, NULL},
    {"moderation", NEUTRAL_NULL, NULL},
    {"store", NEUTRAL_FALSE, NULL},
    {"service_tier", NEUTRAL_WORD, "auto default"},
    {"stop_token_ids", NEUTRAL_ARRAY, NULL},
    {"bad_words", NEUTRAL_ARRAY, NULL},
    {"allowed_token_ids", NEUTRAL_ARRAY, NULL},
    {"include_stop_str_in_output", NEUTRAL_FALSE, NULL},
    {"skip_special_tokens", NEUTRAL_TRUE, NULL},
    {"spaces_between_special_tokens", NEUTRAL_TRUE, NULL},
    {"prompt_logprobs", NEUTRAL_NULL, NULL},
    {"prompt_embeds", NEUTRAL_NULL, NULL},
    {"truncate_prompt_tokens", NEUTRAL_NULL, NULL},
    {"return_token_ids", NEUTRAL_FALSE, NULL},
    {"return_tokens_as_token_ids", NEUTRAL_FALSE, NULL},
    {"add_generation_prompt", NEUTRAL_TRUE, NULL},
    {"continue_final_message", NEUTRAL_FALSE, NULL},
    {"chat_template", NEUTRAL_NULL, NULL},
    {"chat_template_kwargs", NEUTRAL_OBJECT, NULL},
    {"documents", NEUTRAL_ARRAY, NULL},
    {"guided_json", NEUTRAL_NULL, NULL},
    {"guided_regex", NEUTRAL_NULL, NULL},
    {"guided_choice", NEUTRAL_NULL, NULL},
    {"guided_grammar", NEUTRAL_NULL, NULL},
    {"structured_outputs", NEUTRAL_NULL, NULL},
    {"logits_processors", NEUTRAL_ARRAY, NULL},
    {"priority", NEUTRAL_ZERO, NULL},
    {"cache_salt", NEUTRAL_STRING, NULL},
    {"timeout_ms", NEUTRAL_NULL, NULL},
    {"kv_transfer_params", NEUTRAL_NULL, NULL},
    {"parallel_tool_calls", NEUTRAL_ANYTHING, NULL}, /* there are no tools to call */
    {"prompt_cache_key", NEUTRAL_ANYTHING, NULL},    /* hints for caches and accounting */
    {"prompt_cache_retention", NEUTRAL_ANYTHING, NULL},
    {"safety_identifier", NEUTRAL_ANYTHING, NULL},
};

static const char *const served[] = {
    "model",      "temperature", "top_p",          "top_k",
    "min_p",      "seed",        "stop",           "ignore_eos",
    "min_tokens", "max_tokens",  "logprobs",       "stream",
    "user",       "metadata",    "stream_options", "max_completion_tokens",
};

static bool has_word(const char *words, const json_t *v)
{
    if (!json_is_string(v))
        return false;
    size_t n = json_string_length(v);
    for (const char *w = words; *w; w += strspn(w, " ")) {
        size_t m = strcspn(w, " ");
        if (m == n && memcmp(w, json_string_value(v), n) == 0)
            return true;
        w += m;
    }
    return false;
}

static bool is_number(const json_t *v, double value)
{
    double d = json_number_value(v);
    return json_is_number(v) && d >= value && d <= value;
}

static bool is_neutral(const struct unserved *u, const json_t *v)
{
    if (json_is_null(v))
        return true;
    switch (u->neutral) {
    case NEUTRAL_NULL:
        return false;
    case NEUTRAL_FALSE:
        return json_is_false(v);
    case NEUTRAL_STRING:
        return json_is_string(v) && json_string_length(v) == 0;
    case NEUTRAL_ARRAY:
        return json_is_array(v) && json_array_size(v) == 0;
    case NEUTRAL_OBJECT:
        return json_is_object(v) && json_object_size(v) == 0;
    case NEUTRAL_TRUE:
        return json_is_true(v);
    case NEUTRAL_ZERO:
        return is_number(v, 0);
    case NEUTRAL_ONE:
        return is_number(v, 1);
    case NEUTRAL_WORD:
        return has_word(u->words, v);
    case NEUTRAL_TYPE:
        return has_word(u->words, json_object_get(v, "type"));
    case NEUTRAL_TEXTS:
        return json_array_size(v) == 1 && has_word("text", json_array_get(v, 0));
    case NEUTRAL_ANYTHING:
        return true;
    }
    return false;
}

static bool is_served(const char *name, enum request_kind kind)
{
    for (size_t i = 0; i < sizeof served / sizeof *served; i++)
        if (strcmp(served[i], name) == 0)
            return true;
    if (kind == REQUEST_CHAT)
        return strcmp(name, "messages") == 0 || strcmp(name, "top_logprobs") == 0;
    return strcmp(name, "prompt") == 0;
}

enum err request_unserved_check(const json_t *body, enum request_kind kind, uint32_t *n_unknown,
                                struct api_error *e)
{
    *n_unknown = 0;
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)body, name, v)
    {
        const struct unserved *u = NULL;
        for (size_t i = 0; !u && i < sizeof unserved / sizeof *unserved; i++)
            if (strcmp(unserved[i].name, name) == 0)
                u = &unserved[i];
        if (u && !is_neutral(u, v))
            return api_error_set(e, 400, "unsupported_parameter", u->name,
                                 "%s is not supported with this value by this server", u->name);
        if (!u && !is_served(name, kind))
            ++*n_unknown;
    }
    return OK;
}
