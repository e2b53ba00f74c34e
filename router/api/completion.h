#pragma once
#include "router/api/request.h"
#include "router/http/http_request.h"

/* A request in flight: from the HTTP request to its last byte. Created by completion_start, freed
 * by itself when answered or when the client is gone. One owner thread: the router's loop.
 *
 * What a client sees:
 * - plain: one JSON object. Stream: server-sent events, at most one write a step; chat begins with
 * a chunk of the role and ends with an empty delta that holds finish_reason; then, with
 *   stream_options.include_usage, a chunk without choices that holds usage (the others carry
 *   usage: null); then [DONE].
 * - No byte is sent before there is text (or an end), so that a failure until then has its proper
 *   HTTP status. A failure later is one event {"error":{...}}, after which the stream ends without
 *   finish_reason and without [DONE].
 * - The end-of-turn token gives no text and no logprobs entry, but counts in completion_tokens.
 * With ignore_eos control tokens are output like any other, with their text.
 * - completion_tokens counts what was generated up to the end, text cut by a stop string included.
 */

struct api;
struct completion;

/* Parses, tokenises, checks against the window and dispatches; or answers with the error. */
void completion_start(struct api *api, struct http_request *http, enum request_kind kind);
