/* Which Python runs inside us? Debian's libpython with Debian's library folders and nothing else:
 * search paths are written out, because the interpreter would otherwise look for itself along PATH.
 * The interpreter lives until the process ends, as extension modules cannot be started twice. Knows
 * no templates. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "router/text/python_runtime.h"

#define STRING_OF(x) #x
#define WIDE_OF(x) L"" STRING_OF(x)
#define LIBRARY L"/usr/lib/python" WIDE_OF(PY_MAJOR_VERSION) L"." WIDE_OF(PY_MINOR_VERSION)

static PyStatus configure(PyConfig *c)
{
    static const wchar_t *const PATHS[] = {LIBRARY, LIBRARY L"/lib-dynload",
                                           L"/usr/lib/python3/dist-packages"};
    PyConfig_InitIsolatedConfig(c);
    c->site_import = 0;
    c->install_signal_handlers = 0;
    c->write_bytecode = 0;
    c->module_search_paths_set = 1;
    PyStatus s = PyConfig_SetString(c, &c->program_name, L"/usr/bin/python3");
    if (!PyStatus_Exception(s))
        s = PyConfig_SetString(c, &c->home, L"/usr");
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS && !PyStatus_Exception(s); i++)
        s = PyWideStringList_Append(&c->module_search_paths, PATHS[i]);
    return s;
}

enum err python_runtime_start(struct err_info *ei)
{
    if (Py_IsInitialized())
        return OK;
    PyPreConfig pre;
    PyPreConfig_InitIsolatedConfig(&pre);
    pre.utf8_mode = 1;
#ifdef __SANITIZE_ADDRESS__
    pre.allocator = PYMEM_ALLOCATOR_MALLOC; /* the leak checker cannot look into Python's arenas */
#endif
    PyStatus s = Py_PreInitialize(&pre);
    if (PyStatus_Exception(s))
        return err_set(ei, ERR_UNSUPPORTED, "python: %s", s.err_msg);
    PyConfig config;
    s = configure(&config);
    if (!PyStatus_Exception(s))
        s = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(s))
        return err_set(ei, ERR_UNSUPPORTED, "python: %s: is libpython3-stdlib installed?",
                       s.err_msg ? s.err_msg : "cannot start");
    (void)PyEval_SaveThread();
    return OK;
}
