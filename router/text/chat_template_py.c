/* How does the Python half of chat_template get into the program? The assembler copies the file in,
 * so that it stays readable Python for editors and linters, and the program needs no file of its
 * own at run time. The path is relative to the repository root, where everything is built. */
#include "router/text/chat_template_py.h"

__asm__(".section .rodata\n"
        "kvnode_chat_template_py:\n"
        ".incbin \"router/text/chat_template.py\"\n"
        ".byte 0\n"
        ".previous\n");

extern const char kvnode_chat_template_py[];

const char *chat_template_py_source(void)
{
    return kvnode_chat_template_py;
}
