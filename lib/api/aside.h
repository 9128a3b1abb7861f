/*
 * Private to lib/api: a second thread that reads long bodies. A megabyte of JSON takes tens of milliseconds, a megabyte
 * of text seconds to encode, and meanwhile no stream would get its tokens.
 */
#ifndef API_ASIDE_H
#define API_ASIDE_H

#include "api/api.h"

#define ASIDE_BYTES 65536           /* a body from here on is read by the thread */
#define ASIDE_BYTES_PREPARED 4096   /* … of a route that has more to do with it than to read JSON */
#define ASIDE_BYTES_MAX (64u << 20) /* of bodies that wait */

struct aside;
struct aside_job;

int aside_open(struct err *e, struct aside **out);
void aside_close(struct aside *s);
int aside_fd(const struct aside *s);   /* readable: aside_take has something */
size_t aside_n(const struct aside *s); /* put and not taken */

/* The body is copied, and so is *m; r and route are given back by aside_take. NULL: too much waits, or no memory. */
struct aside_job *aside_put(struct aside *s, struct http_request *r, const struct api_route *route,
                            const struct api_model *m, const char *body, size_t n);
void aside_forget(struct aside *s, struct aside_job *j); /* its request is no more: it is not read where it waits */
/* The next that is done. *r: NULL where it was forgotten; *p: NULL where there was no memory; owned by the caller. */
bool aside_take(struct aside *s, struct http_request **r, const struct api_route **route, struct api_parsed **p);

/* What the thread does, here. NULL: no memory. */
struct api_parsed *api_parse(const struct api_route *route, const struct api_model *m, const char *body, size_t n);
void api_parsed_free(struct api_parsed *p);

#endif
