#pragma once
#include "router/http/http_connection.h"

/* http_parser's callbacks for a connection (parser.data): they fill c->request, set is_head_done
 * and is_body_done, pause the parser at the end of a message, and stop it with reject_status set
 * when the request is refused. */
const http_parser_settings *http_parse_callbacks(void);

/* Notes what to answer instead (headers: static lines or NULL; text: copied). Returns -1. */
int http_parse_refuse(struct http_connection *c, int status, const char *headers, const char *text);
