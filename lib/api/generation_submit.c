/* Submits the prompts of a generation to the gateway, long ones after the parse thread has converted them. */
#include <stdlib.h>
#include <string.h>

#include "api/api_impl.h"

/* A long request, which the parse thread converts to text. */
struct submit_job {
    struct job job;
    struct generation *c; /* used by the loop's thread only; NULL: it has ended */
    json_t **line;        /* [n] references; NULL after the conversion */
    char **text;          /* [n] */
    uint32_t n;
    uint64_t context;
};

/* The request as JSON text. context: 0, or the context length unless the request has a smaller one. */
static char *text_of(const json_t *line, uint64_t context)
{
    const json_t *own = json_object_get(line, "window");
    if (!context || (json_is_integer(own) && (uint64_t)json_integer_value(own) <= context))
        return json_dumps(line, JSON_COMPACT);
    json_t *mine = json_copy((json_t *)(uintptr_t)line);
    char *text = NULL;
    if (mine && !json_object_set_new(mine, "window", json_integer((json_int_t)context)))
        text = json_dumps(mine, JSON_COMPACT);
    json_decref(mine);
    return text;
}

static uint64_t context_of(const struct api *a)
{
    return a->model.context == a->file_context ? 0 : a->model.context;
}

static int submit(struct err *e, struct generation_prompt *l, const char *text)
{
    struct generation *c = l->c;
    int rc = text ? gateway_submit_for(e, c->a->gateway, c->tenant, l->seq, (struct wire_str){0}, text, strlen(text))
                  : err_nomem(e, "a request", 0);
    if (!rc)
        generation_hash(l);
    return rc;
}

/* Submits all prompts, or none: on error those submitted are cancelled. */
static int submit_all(struct err *e, struct generation *c, const json_t *const *line)
{
    struct api *a = c->a;
    int rc = 0;
    for (uint32_t i = 0; i < c->n_line && !rc; i++) {
        char *text = text_of(line[i], context_of(a));
        rc = submit(e, &c->line[i], text);
        free(text);
    }
    for (uint32_t i = 0; rc && i < c->n_line; i++) {
        if (c->line[i].hashed)
            gateway_cancel(a->gateway, c->line[i].seq);
        generation_unhash(&c->line[i]);
    }
    return rc;
}

/* ---- long requests, which the parse thread converts ---- */

static void submit_run(void *arg)
{
    struct submit_job *j = arg;
    for (uint32_t i = 0; i < j->n; i++) {
        j->text[i] = text_of(j->line[i], j->context);
        json_decref(j->line[i]); /* mostly the last reference: this too takes long */
        j->line[i] = NULL;
    }
}

static void submit_free(struct submit_job *j)
{
    if (!j)
        return;
    for (uint32_t i = 0; i < j->n; i++) {
        json_decref(j->line[i]);
        free(j->text[i]);
    }
    free(j->line);
    free(j->text);
    free(j);
}

static void submit_done(void *arg, bool ran)
{
    struct submit_job *j = arg;
    struct generation *c = j->c;
    struct err e = {0};
    if (c)
        c->submit = NULL;
    for (uint32_t i = 0; c && ran && i < j->n && !e.code; i++)
        submit(&e, &c->line[i], j->text[i]);
    if (e.code) {
        const struct api_error why = {500, 0, e.text};
        generation_fail(c, 0, 0, &why);
    }
    submit_free(j);
}

static int submit_later(struct err *e, struct generation *c, const json_t *const *line, size_t n_bytes)
{
    struct submit_job *j = calloc(1, sizeof *j);
    if (!j || !(j->line = calloc(c->n_line, sizeof *j->line)) || !(j->text = calloc(c->n_line, sizeof *j->text))) {
        submit_free(j);
        return err_nomem(e, "a request", n_bytes);
    }
    j->job = (struct job){.run = submit_run, .done = submit_done, .arg = j, .n_bytes = n_bytes};
    j->c = c;
    j->n = c->n_line;
    j->context = context_of(c->a);
    for (uint32_t i = 0; i < j->n; i++)
        j->line[i] = json_incref((json_t *)(uintptr_t)line[i]);
    if (job_add(e, c->a->parse, &j->job)) {
        submit_free(j);
        return e->code;
    }
    c->submit = j;
    return 0;
}

int generation_submit(struct err *e, struct generation *c, const json_t *const *line, size_t n_bytes)
{
    return n_bytes < PARSE_BYTES ? submit_all(e, c, line) : submit_later(e, c, line, n_bytes);
}

/* It is converted all the same: so its memory is freed by the parse thread. */
void generation_submit_forget(struct generation *c)
{
    c->submit->c = NULL;
    c->submit = NULL;
}
