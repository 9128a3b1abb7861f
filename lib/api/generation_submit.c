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
    struct line_edit edit;
};

static struct line_edit edit_of(const struct generation *c)
{
    const struct api *a = c->a;
    struct line_edit x = {.context = a->model.context == a->file_context ? 0 : a->model.context,
                          .salted = c->key && !a->o.shared_cache};
    if (x.salted)
        memcpy(x.hash, c->key->hash, sizeof x.hash);
    return x;
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
    const struct line_edit edit = edit_of(c);
    int rc = 0;
    for (uint32_t i = 0; i < c->n_line && !rc; i++) {
        char *text = line_text(line[i], &edit);
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
        j->text[i] = line_text(j->line[i], &j->edit);
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
    j->edit = edit_of(c);
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
