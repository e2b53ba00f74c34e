/* Are these chat messages that a template may see? Checks roles, contents, parts and tool calls and
 * names the first fault by its path. Keeps: every content is a string, null, or a list of text
 * parts. Does not render and does not change anything. */
#include "router/api/request.h"

#include <stdio.h>
#include <string.h>

static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};

static bool is_role(const json_t *v)
{
    for (size_t i = 0; json_is_string(v) && i < sizeof roles / sizeof *roles; i++)
        if (strcmp(json_string_value(v), roles[i]) == 0)
            return true;
    return false;
}

static size_t count_strings(const json_t *v)
{
    size_t n = json_is_string(v);
    const char *key;
    json_t *child;
    size_t i;
    if (json_is_object(v)) {
        json_object_foreach((json_t *)(uintptr_t)v, key, child) n += count_strings(child);
    }
    if (json_is_array(v)) {
        json_array_foreach(v, i, child) n += count_strings(child);
    }
    return n;
}

static enum err check_part(const json_t *part, const char *path, struct api_error *e)
{
    char param[112];
    if (!json_is_object(part))
        return api_error_set(e, 400, NULL, path, "%s must be an object", path);
    const json_t *type = json_object_get(part, "type");
    (void)snprintf(param, sizeof param, "%s.type", path);
    if (!json_is_string(type))
        return api_error_set(e, 400, NULL, param, "%s must be a string", param);
    if (strcmp(json_string_value(type), "text") != 0)
        return api_error_set(e, 400, NULL, param,
                             "%s is '%.60s': this model takes parts of type 'text' only", param,
                             json_string_value(type));
    (void)snprintf(param, sizeof param, "%s.text", path);
    if (!json_is_string(json_object_get(part, "text")))
        return api_error_set(e, 400, NULL, param, "%s must be a string", param);
    return OK;
}

static enum err check_content(const json_t *message, size_t at, struct api_error *e)
{
    char param[64];
    (void)snprintf(param, sizeof param, "messages[%zu].content", at);
    const json_t *content = json_object_get(message, "content");
    bool is_assistant =
        strcmp(json_string_value(json_object_get(message, "role")), "assistant") == 0;
    bool has_calls = json_array_size(json_object_get(message, "tool_calls")) > 0;
    if (json_is_string(content) || (is_assistant && json_is_null(content)) ||
        (is_assistant && has_calls && !content))
        return OK;
    if (!json_is_array(content))
        return api_error_set(e, 400, NULL, param, "%s must be a string or an array of text parts",
                             param);
    size_t i;
    const json_t *part;
    json_array_foreach(content, i, part)
    {
        char path[96];
        (void)snprintf(path, sizeof path, "%s[%zu]", param, i);
        enum err rc = check_part(part, path, e);
        if (rc != OK)
            return rc;
    }
    return OK;
}

static enum err check_string(const json_t *message, size_t at, const char *key, struct api_error *e)
{
    const json_t *v = json_object_get(message, key);
    if (!v || json_is_null(v) || json_is_string(v))
        return OK;
    char param[64];
    (void)snprintf(param, sizeof param, "messages[%zu].%s", at, key);
    return api_error_set(e, 400, NULL, param, "%s must be a string", param);
}

/* Calls the assistant made in an earlier turn: rendered, so their shape matters to templates. */
static enum err check_tool_calls(const json_t *message, size_t at, struct api_error *e)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    if (!calls || json_is_null(calls))
        return OK;
    char param[96];
    (void)snprintf(param, sizeof param, "messages[%zu].tool_calls", at);
    if (!json_is_array(calls))
        return api_error_set(e, 400, NULL, param, "%s must be an array", param);
    size_t i;
    const json_t *call;
    json_array_foreach(calls, i, call)
    {
        const json_t *function = json_object_get(call, "function");
        const json_t *arguments = json_object_get(function, "arguments");
        (void)snprintf(param, sizeof param, "messages[%zu].tool_calls[%zu].function", at, i);
        if (!json_is_string(json_object_get(function, "name")) ||
            (arguments && !json_is_string(arguments) && !json_is_object(arguments)))
            return api_error_set(e, 400, NULL, param,
                                 "%s must have a string name and arguments as a string", param);
    }
    return OK;
}

static enum err check_message(const json_t *message, size_t at, struct api_error *e)
{
    char param[64];
    (void)snprintf(param, sizeof param, "messages[%zu]", at);
    if (!json_is_object(message))
        return api_error_set(e, 400, NULL, param, "%s must be an object", param);
    const json_t *role = json_object_get(message, "role");
    if (!is_role(role)) {
        (void)snprintf(param, sizeof param, "messages[%zu].role", at);
        return api_error_set(e, 400, NULL, param,
                             "%s must be one of system, developer, user, assistant, tool%s%.60s%s",
                             param, json_is_string(role) ? ", not '" : "",
                             json_is_string(role) ? json_string_value(role) : "",
                             json_is_string(role) ? "'" : "");
    }
    enum err rc = check_content(message, at, e);
    if (rc == OK)
        rc = check_string(message, at, "name", e);
    if (rc == OK)
        rc = check_string(message, at, "tool_call_id", e);
    if (rc == OK)
        rc = check_tool_calls(message, at, e);
    return rc;
}

enum err request_messages_check(const json_t *messages, size_t *n_strings, struct api_error *e)
{
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return api_error_set(e, 400, NULL, "messages",
                             "messages must be an array with at least one message");
    size_t i;
    const json_t *message;
    json_array_foreach(messages, i, message)
    {
        enum err rc = check_message(message, i, e);
        if (rc != OK)
            return rc;
    }
    *n_strings = count_strings(messages);
    return OK;
}
