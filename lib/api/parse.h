/*
 * Private to lib/api: parsing of bodies. A megabyte of JSON takes tens of milliseconds, and a megabyte of text takes
 * seconds to tokenize; meanwhile no stream would get its tokens. So a background thread (base/job.h), the parse thread,
 * parses long bodies.
 */
#ifndef API_PARSE_H
#define API_PARSE_H

#include "api/api.h"

#define PARSE_BYTES 65536           /* bodies of this size and above go to the parse thread */
#define PARSE_BYTES_PREPARED 4096   /* … of routes with `prepare` */
#define PARSE_BYTES_MAX (64u << 20) /* total of the bodies in the queue */

#define PARSE_FULL_TEXT "too many long requests are waiting to be parsed; retry later"

struct parse_job;

/* Queues a body, which is taken over, on failure too; the model is copied. When it is parsed, api_on_parsed is called,
 * unless parse_cancel was. ERR_NO: the queue is full. */
int parse_add(struct err *e, struct parse_job **out, struct api *a, struct http_request *r,
              const struct api_route *route, char *body, size_t n);
void parse_cancel(struct parse_job *j); /* the request is finished: the job is dropped, or its result ignored */

/* Parses in the calling thread. NULL: no memory. */
struct api_parsed *api_parse(const struct api_route *route, const struct api_model *m, const char *body, size_t n);
void api_parsed_free(struct api_parsed *p);
/* The same; a long one is freed by the parse thread, because that takes tens of milliseconds too. */
void parse_drop(struct api *a, struct api_parsed *p);

#endif
