#pragma once
#include "config/base/err.h"

/* The one Python interpreter of the process: Debian's, isolated (no environment variables, no user
 * or site packages, no signal handlers), whatever Python stands first on PATH. Include Python.h
 * first where it is used. */

/* Starts it once; afterwards no thread holds the GIL (use PyGILState_Ensure). Errors: UNSUPPORTED
 * (the standard library is missing: names the package). */
NODISCARD enum err python_runtime_start(struct err_info *ei);
