/* How does a node's status look to a person? JSON in, text out, nothing else touched. Invariant:
 * whatever the answer lacks, the rest is still shown. Knows nothing of sockets. */
#include "ops/kvctl_status.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { CELL_BYTES = 64, TEXT_BYTES = 512 };

/* A value as one short word. Strings are cut to fit and lose their control characters. */
static void value_text(const json_t *v, char *out, size_t out_bytes)
{
    if (json_is_string(v))
        (void)snprintf(out, out_bytes, "%s", json_string_value(v));
    else if (json_is_integer(v))
        (void)snprintf(out, out_bytes, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else
        (void)snprintf(out, out_bytes, "-");
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    if (!*out)
        (void)snprintf(out, out_bytes, "-");
}

/* "label VALUE" of one member, led by before. */
static void append_value(struct bytes *out, const char *before, const json_t *object,
                         const char *key)
{
    char text[TEXT_BYTES];
    value_text(json_object_get(object, key), text, sizeof text);
    bytes_printf(out, "%s%s", before, text);
}

static void append_duration(struct bytes *out, const json_t *seconds)
{
    if (!json_is_number(seconds) || json_number_value(seconds) < 0) {
        bytes_append_str(out, "-");
        return;
    }
    double s = json_number_value(seconds);
    if (s < 60)
        bytes_printf(out, "%.1f s", s);
    else if (s < 3600)
        bytes_printf(out, "%.0f min", s / 60);
    else if (s < 48 * 3600)
        bytes_printf(out, "%.1f h", s / 3600);
    else
        bytes_printf(out, "%.1f days", s / 86400);
}

static void append_size(struct bytes *out, const json_t *size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    if (!json_is_integer(size)) {
        bytes_append_str(out, "-");
        return;
    }
    double v = (double)json_integer_value(size);
    size_t unit = 0;
    while (v >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        v /= 1024;
        unit++;
    }
    bytes_printf(out, unit ? "%.1f %s" : "%.0f %s", v, units[unit]);
}

static void append_node(struct bytes *out, const json_t *node)
{
    append_value(out, "", node, "name");
    append_value(out, ": ", node, "state");
    bytes_append_str(out, ", up ");
    append_duration(out, json_object_get(node, "uptime_s"));
    append_value(out, ", pid ", node, "pid");
    append_value(out, ", version ", node, "version");
    append_value(out, "\n  address   http://", node, "address");
    append_value(out, "\n  model     ", node, "model");
    append_value(out, " (", node, "isa");
    append_value(out, ", window ", node, "max_context");
    bytes_append_str(out, " tokens)\n");
}

static const struct column {
    const char *key, *title;
    bool is_left;
} columns[] = {
    {"index", "worker", false},
    {"state", "state", true},
    {"pid", "pid", false},
    {"running", "running", false},
    {"waiting", "waiting", false},
    {"in_flight", "in flight", false},
    {"phase", "phase", true},
    {"step", "step", false},
    {"threads", "threads", false},
    {"restarts", "restarts", false},
    {"last_exit", "last exit", true},
};
enum { N_COLUMNS = sizeof columns / sizeof columns[0] };

static void append_row(struct bytes *out, const json_t *worker, const int width[N_COLUMNS])
{
    char cell[CELL_BYTES];
    bytes_append_str(out, " ");
    for (size_t i = 0; i < N_COLUMNS; i++) {
        if (worker)
            value_text(json_object_get(worker, columns[i].key), cell, sizeof cell);
        else
            (void)snprintf(cell, sizeof cell, "%s", columns[i].title);
        bool is_last = i + 1 == N_COLUMNS; /* no blanks at the end of a line */
        bytes_printf(out, " %*s", is_last ? 0 : columns[i].is_left ? -width[i] : width[i], cell);
        if (!is_last)
            bytes_append_str(out, " ");
    }
    bytes_append_str(out, "\n");
}

static void append_workers(struct bytes *out, const json_t *workers)
{
    int width[N_COLUMNS];
    char cell[CELL_BYTES];
    size_t row;
    const json_t *worker;
    for (size_t i = 0; i < N_COLUMNS; i++)
        width[i] = (int)strlen(columns[i].title);
    json_array_foreach(workers, row, worker)
    {
        for (size_t i = 0; i < N_COLUMNS; i++) {
            value_text(json_object_get(worker, columns[i].key), cell, sizeof cell);
            if ((int)strlen(cell) > width[i])
                width[i] = (int)strlen(cell);
        }
    }
    bytes_append_str(out, "\n");
    append_row(out, NULL, width);
    json_array_foreach(workers, row, worker)
    {
        append_row(out, worker, width);
    }
}

static void append_kv(struct bytes *out, const json_t *kv)
{
    const json_t *huge = json_object_get(kv, "huge_pages");
    append_value(out, "\nKV store    ", kv, "blocks");
    append_value(out, " blocks of ", kv, "block_size");
    append_value(out, " tokens = ", kv, "tokens");
    bytes_append_str(out, " tokens, ");
    append_size(out, json_object_get(kv, "bytes"));
    if (json_is_boolean(huge))
        bytes_append_str(out, json_is_true(huge) ? ", huge pages" : ", small pages");
    append_value(out, "\n  blocks    ", kv, "free");
    append_value(out, " free, ", kv, "filling");
    append_value(out, " filling, ", kv, "ready");
    append_value(out, " ready, ", kv, "pinned");
    append_value(out, " pinned; ", kv, "evicted");
    bytes_append_str(out, " evicted so far\n");
}

/* Every source but "computed" is a hit: a newer node may name more of them. */
static void append_prompt_tokens(struct bytes *out, json_t *sources)
{
    const char *key;
    json_t *value;
    json_int_t total = 0, hits = 0;
    json_object_foreach(sources, key, value)
    {
        total += json_integer_value(value);
        if (strcmp(key, "computed") != 0)
            hits += json_integer_value(value);
    }
    append_value(out, "  prompts   ", sources, "computed");
    bytes_printf(out, " tokens computed, %" JSON_INTEGER_FORMAT " from cache", hits);
    if (total > 0)
        bytes_printf(out, " (%.1f %% hit)", 100.0 * (double)hits / (double)total);
    bytes_append_str(out, "\n");
}

static void append_requests(struct bytes *out, const json_t *requests)
{
    append_value(out, "\nrequests    ", requests, "active");
    append_value(out, " active, ", requests, "finished");
    append_value(out, " finished, ", requests, "failed");
    append_value(out, " failed, ", requests, "retried");
    append_value(out, " retried, ", requests, "aborted");
    bytes_append_str(out, " aborted\n");
}

void kvctl_status_render(const json_t *answer, struct bytes *out)
{
    const json_t *workers = json_object_get(answer, "workers"), *kv = json_object_get(answer, "kv"),
                 *requests = json_object_get(answer, "requests");
    json_t *prompt_tokens = json_object_get(kv, "prompt_tokens");
    append_node(out, json_object_get(answer, "node"));
    if (json_array_size(workers) > 0)
        append_workers(out, workers);
    if (json_is_object(kv))
        append_kv(out, kv);
    if (json_is_object(prompt_tokens))
        append_prompt_tokens(out, prompt_tokens);
    if (json_is_object(requests))
        append_requests(out, requests);
}
