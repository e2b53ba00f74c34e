/* How does a chat become text? chat_template.py, running in the embedded interpreter, does what
 * transformers does; this side hands JSON in and takes bytes out. The interpreter's lock is held
 * for one call at a time, every Python error ends here as an err_info, and no Python object but the
 * compiled template outlives a call. Does not know tokens. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "router/text/chat_template.h"

#include "router/text/chat_template_py.h"
#include "router/text/python_runtime.h"

#include <stdlib.h>
#include <string.h>

#define MODULE "kvnode_chat_template"

/* as in chat_template.py */
enum outcome { RENDERED, REFUSED, UNSUPPORTED, NO_MEMORY };

struct chat_template {
    PyObject *template;
    bool wants_parts;
};

/* Takes the pending exception; code as the kind of the error unless it is a want of memory. */
static enum err take_exception(enum err code, const char *what, struct err_info *ei)
{
    PyObject *type = NULL, *value = NULL, *trace = NULL;
    PyErr_Fetch(&type, &value, &trace);
    if (type && PyErr_GivenExceptionMatches(type, PyExc_MemoryError))
        code = ERR_NOMEM;
    PyObject *text = value ? PyObject_Str(value) : NULL;
    const char *s = text ? PyUnicode_AsUTF8(text) : NULL;
    (void)err_set(ei, code, "chat template: %s: %.300s", what, s ? s : "unknown error");
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    PyErr_Clear();
    return code;
}

static enum err outcome_err(int outcome)
{
    return outcome == REFUSED ? ERR_PARSE : outcome == NO_MEMORY ? ERR_NOMEM : ERR_UNSUPPORTED;
}

/* New reference to the helper module, compiled at its first use. */
static enum err helper_module(PyObject **out, struct err_info *ei)
{
    PyObject *name = PyUnicode_FromString(MODULE);
    PyObject *module = name ? PyImport_GetModule(name) : NULL;
    Py_XDECREF(name);
    if (!module && !PyErr_Occurred()) {
        PyObject *code =
            Py_CompileString(chat_template_py_source(), "chat_template.py", Py_file_input);
        module = code ? PyImport_ExecCodeModule(MODULE, code) : NULL;
        Py_XDECREF(code);
    }
    if (!module)
        return take_exception(ERR_UNSUPPORTED, "cannot load Jinja2 (package python3-jinja2)", ei);
    *out = module;
    return OK;
}

static enum err compile_template(const struct chat_template_config *cfg, struct chat_template *t,
                                 struct err_info *ei)
{
    PyObject *module = NULL, *result = NULL, *second = NULL, *wants = NULL;
    int outcome;
    enum err rc = helper_module(&module, ei);
    if (rc)
        return rc;
    result = PyObject_CallMethod(
        module, "compile_template", "y#yy", cfg->source, (Py_ssize_t)cfg->source_bytes,
        cfg->bos_token ? cfg->bos_token : "", cfg->eos_token ? cfg->eos_token : "");
    if (!result || !PyArg_ParseTuple(result, "iO", &outcome, &second)) {
        rc = take_exception(ERR_UNSUPPORTED, "cannot compile", ei);
        goto done;
    }
    if (outcome != RENDERED) {
        rc = err_set(ei, outcome_err(outcome), "%s", PyBytes_AsString(second));
        goto done;
    }
    wants = PyObject_CallMethod(second, "wants_parts", NULL);
    if (!wants) {
        rc = take_exception(ERR_UNSUPPORTED, "cannot probe", ei);
        goto done;
    }
    t->wants_parts = wants == Py_True;
    Py_INCREF(second);
    t->template = second;
done:
    Py_XDECREF(wants);
    Py_XDECREF(result);
    Py_DECREF(module);
    return rc;
}

enum err chat_template_new(const struct chat_template_config *cfg, struct chat_template **out,
                           struct err_info *ei)
{
    enum err rc = python_runtime_start(ei);
    if (rc)
        return rc;
    struct chat_template *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(ei, ERR_NOMEM, "chat template: no memory");
    PyGILState_STATE lock = PyGILState_Ensure();
    rc = compile_template(cfg, t, ei);
    PyGILState_Release(lock);
    if (rc) {
        free(t);
        return rc;
    }
    *out = t;
    return OK;
}

void chat_template_free(struct chat_template *t)
{
    if (!t)
        return;
    PyGILState_STATE lock = PyGILState_Ensure();
    Py_XDECREF(t->template);
    PyGILState_Release(lock);
    free(t);
}

bool chat_template_wants_parts(const struct chat_template *t)
{
    return t->wants_parts;
}

/* Pairs of uint64 from Python -> spans. */
static enum err copy_spans(const char *pairs, size_t n_bytes, struct text_span *spans,
                           size_t *n_spans, struct err_info *ei)
{
    size_t n = n_bytes / (2 * sizeof(uint64_t));
    if (n > *n_spans)
        return err_set(ei, ERR_LIMIT, "chat template: %zu stretches of user text, room for %zu", n,
                       *n_spans);
    for (size_t i = 0; i < n; i++) {
        uint64_t pair[2];
        memcpy(pair, pairs + i * sizeof pair, sizeof pair);
        spans[i] = (struct text_span){(size_t)pair[0], (size_t)pair[1]};
    }
    *n_spans = n;
    return OK;
}

static enum err take_result(PyObject *result, struct bytes *out, struct text_span *spans,
                            size_t *n_spans, struct err_info *ei)
{
    int outcome;
    const char *text, *pairs;
    Py_ssize_t n_text, n_pairs;
    if (!result || !PyArg_ParseTuple(result, "iy#y#", &outcome, &text, &n_text, &pairs, &n_pairs))
        return take_exception(ERR_UNSUPPORTED, "cannot render", ei);
    if (outcome != RENDERED)
        return err_set(ei, outcome_err(outcome), "%s", text);
    if (spans) {
        enum err rc = copy_spans(pairs, (size_t)n_pairs, spans, n_spans, ei);
        if (rc)
            return rc;
    }
    bytes_append(out, text, (size_t)n_text);
    return out->failed ? err_set(ei, ERR_NOMEM, "chat template: no memory") : OK;
}

static enum err render(struct chat_template *t, const struct chat_template_request *req,
                       struct bytes *out, struct text_span *spans, size_t *n_spans,
                       struct err_info *ei)
{
    PyGILState_STATE lock = PyGILState_Ensure();
    PyObject *result = PyObject_CallMethod(t->template, "render", "yyyiiiLi", req->messages_json,
                                           req->tools_json, req->kwargs_json,
                                           req->add_generation_prompt, req->continue_final_message,
                                           req->flatten, (long long)req->now_s, spans != NULL);
    enum err rc = take_result(result, out, spans, n_spans, ei);
    Py_XDECREF(result);
    PyGILState_Release(lock);
    return rc;
}

enum err chat_template_render(struct chat_template *t, const struct chat_template_request *req,
                              struct bytes *out, struct err_info *ei)
{
    return render(t, req, out, NULL, NULL, ei);
}

enum err chat_template_render_spans(struct chat_template *t,
                                    const struct chat_template_request *req, struct bytes *out,
                                    struct text_span *spans, size_t *n_spans, struct err_info *ei)
{
    return render(t, req, out, spans, n_spans, ei);
}
