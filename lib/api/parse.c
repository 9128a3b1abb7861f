/* Parsing of bodies, long ones by the parse thread. */
#include "api/parse.h"

#include <stdlib.h>
#include <string.h>

#include "api/api_impl.h"
#include "request/ask.h"

struct parse_job {
    struct job job;
    struct api *a;
    struct http_request *r; /* used by the loop's thread only; NULL: finished */
    const struct api_route *route;
    struct api_model model; /* a copy: the loop may change the context length meanwhile */
    char *body;
    size_t n;
    struct api_parsed *p;
};

struct api_parsed *api_parse(const struct api_route *route, const struct api_model *m, const char *body, size_t n)
{
    struct api_parsed *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->n = n;
    p->rc = ask_parse(&p->e, &p->o, body, n);
    if (!p->rc && route && route->prepare)
        route->prepare(p, m);
    return p;
}

void api_parsed_free(struct api_parsed *p)
{
    if (!p)
        return;
    if (p->free_more)
        p->free_more(p->more);
    json_decref(p->o);
    free(p);
}

static void run(void *arg)
{
    struct parse_job *j = arg;
    j->p = api_parse(j->route, &j->model, j->body, j->n);
}

static void done(void *arg, bool ran)
{
    struct parse_job *j = arg;
    (void)ran;
    j->a->n_parsing -= j->n;
    if (j->r)
        api_on_parsed(j->a, j->r, j->route, j->p);
    else
        parse_drop(j->a, j->p);
    free(j->body);
    free(j);
}

int parse_add(struct err *e, struct parse_job **out, struct api *a, struct http_request *r,
              const struct api_route *route, char *body, size_t n)
{
    struct parse_job *j = calloc(1, sizeof *j);
    *out = NULL;
    if (j)
        *j = (struct parse_job){.job = {.run = run, .done = done, .arg = j, .n_bytes = n},
                                .a = a,
                                .r = r,
                                .route = route,
                                .model = a->model,
                                .body = body,
                                .n = n};
    int rc = j ? job_add(e, a->parse, &j->job) : err_nomem(e, "a body", sizeof *j);
    if (!rc) {
        a->n_parsing += n;
        *out = j;
        return 0;
    }
    free(body);
    free(j);
    return rc;
}

struct drop_job {
    struct job job;
    struct api_parsed *p;
};

static void drop_run(void *arg)
{
    struct drop_job *j = arg;
    api_parsed_free(j->p);
    j->p = NULL;
}

static void drop_done(void *arg, bool ran)
{
    struct drop_job *j = arg;
    (void)ran;
    api_parsed_free(j->p);
    free(j);
}

void parse_drop(struct api *a, struct api_parsed *p)
{
    struct err e;
    struct drop_job *j = p && p->n >= PARSE_BYTES ? calloc(1, sizeof *j) : NULL;
    if (j) {
        *j = (struct drop_job){.job = {.run = drop_run, .done = drop_done, .arg = j}, .p = p};
        if (!job_add(&e, a->parse, &j->job))
            return;
    }
    free(j);
    api_parsed_free(p);
}

void parse_cancel(struct parse_job *j)
{
    j->r = NULL;
    job_cancel(j->a->parse, &j->job);
}
