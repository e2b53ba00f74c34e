#pragma once

/* The text of chat_template.py, NUL-terminated, as it was when the program was built. */
const char *chat_template_py_source(void);
