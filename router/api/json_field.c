/* Is this field what it should be? One place for types, ranges and the words about them. Keeps: a
 * value that leaves here is within its range. Does not know what the fields mean. */
#include "router/api/json_field.h"

#include <math.h>

json_t *json_field(const json_t *object, const char *name)
{
    json_t *v = json_object_get(object, name);
    return json_is_null(v) ? NULL : v;
}

bool json_field_as_integer(const json_t *v, int64_t *out)
{
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    double d = json_real_value(v);
    /* the bounds are the doubles next to the ends of int64's range */
    if (!json_is_real(v) || floor(d) != d || d < -9223372036854775808.0 ||
        d >= 9223372036854775808.0)
        return false;
    *out = (int64_t)d;
    return true;
}

enum err json_field_integer(const json_t *object, const char *name, struct json_field_range range,
                            bool *has, int64_t *out, struct api_error *e)
{
    const json_t *v = json_field(object, name);
    if (has)
        *has = v != NULL;
    if (!v)
        return OK;
    int64_t i;
    if (!json_field_as_integer(v, &i))
        return api_error_set(e, 400, NULL, name, "%s must be an integer of at most 64 bits", name);
    if (i < range.min || i > range.max) {
        if (range.max == INT64_MAX)
            return api_error_set(e, 400, NULL, name, "%s must be at least %lld, not %lld", name,
                                 (long long)range.min, (long long)i);
        return api_error_set(e, 400, NULL, name, "%s must be from %lld to %lld, not %lld", name,
                             (long long)range.min, (long long)range.max, (long long)i);
    }
    *out = i;
    return OK;
}

enum err json_field_number(const json_t *object, const char *name, struct json_field_interval range,
                           float *out, struct api_error *e)
{
    const json_t *v = json_field(object, name);
    if (!v)
        return OK;
    if (!json_is_number(v))
        return api_error_set(e, 400, NULL, name, "%s must be a number", name);
    double d = json_number_value(v);
    float f = (float)d;
    /* the float is what is used: a tiny top_p must not round to 0 */
    bool is_in = isfinite(d) && d >= range.min && d <= range.max &&
                 (!range.is_min_open || (double)f > range.min);
    if (!is_in)
        return api_error_set(e, 400, NULL, name, "%s must be %s %g and at most %g, not %g", name,
                             range.is_min_open ? "above" : "at least", range.min, range.max, d);
    *out = f;
    return OK;
}

enum err json_field_bool(const json_t *object, const char *name, bool *out, struct api_error *e)
{
    const json_t *v = json_field(object, name);
    if (!v)
        return OK;
    if (!json_is_boolean(v))
        return api_error_set(e, 400, NULL, name, "%s must be true or false", name);
    *out = json_is_true(v);
    return OK;
}
