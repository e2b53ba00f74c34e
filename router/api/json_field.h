#pragma once
#include "router/api/api_error.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>

/* Fields of a JSON object with their type and range checked: null counts as absent. Each getter
 * leaves *out (the default) alone when the field is absent; *has, which may be NULL, tells. A
 * refusal is 400 with param = the field. Pure functions. */

/* The field, or NULL when absent or null. */
json_t *json_field(const json_t *object, const char *name);

struct json_field_range {
    int64_t min, max;
};
/* Numbers such as 1e3 and 8.0 are the integers they equal. */
NODISCARD enum err json_field_integer(const json_t *object, const char *name,
                                      struct json_field_range range, bool *has, int64_t *out,
                                      struct api_error *e);
/* min <= value <= max; is_min_open: min < value. */
struct json_field_interval {
    double min, max;
    bool is_min_open;
};
NODISCARD enum err json_field_number(const json_t *object, const char *name,
                                     struct json_field_interval range, float *out,
                                     struct api_error *e);
NODISCARD enum err json_field_bool(const json_t *object, const char *name, bool *out,
                                   struct api_error *e);

/* A number that is an integer in the range of int64; false otherwise. */
bool json_field_as_integer(const json_t *v, int64_t *out);
