/*
 * Private to lib/api: bodies as JSON. A megabyte of JSON takes tens of milliseconds, a megabyte of text seconds to
 * encode, and meanwhile no stream would get its tokens: a long body is read by a background thread (base/job.h).
 */
#ifndef API_PARSE_H
#define API_PARSE_H

#include "api/api.h"

#define PARSE_BYTES 65536           /* a body from here on is read by the thread */
#define PARSE_BYTES_PREPARED 4096   /* … of a route that has more to do with it than to read JSON */
#define PARSE_BYTES_MAX (64u << 20) /* of bodies that wait */

struct parse_job;

/* Queues a body, which is copied, as is the model. When it is read, api_on_parsed is called, unless parse_forget was.
 * ERR_NO: too much waits. */
int parse_add(struct err *e, struct parse_job **out, struct api *a, struct http_request *r,
              const struct api_route *route, const char *body, size_t n);
void parse_forget(struct parse_job *j); /* its request no longer exists: it is not read if it waits */

/* What the thread does, here. NULL: no memory. */
struct api_parsed *api_parse(const struct api_route *route, const struct api_model *m, const char *body, size_t n);
void api_parsed_free(struct api_parsed *p);

#endif
