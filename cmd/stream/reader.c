/* Converts standard input, or the prompt of the command line, to JSON lines for the gateway. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/stream/service.h"
#include "request/lines.h"

/* Blocks until a slot is free, then queues the line. False: the program is ending. Owns what l owns. */
static bool give(struct service *s, struct ask_line *l, uint64_t line)
{
    struct piece *x = calloc(1, sizeof *x);
    pthread_mutex_lock(&s->lock);
    while (s->n_used == s->o->running_max && !s->quit && !s->input_over)
        pthread_cond_wait(&s->changed, &s->lock);
    bool ok = x && !s->quit && !s->input_over;
    if (ok) {
        struct slot *at = s->slot;
        while (at->used)
            at++;
        *at = (struct slot){.used = true, .seq = s->next_seq++, .line = line};
        s->n_used++;
        *x = (struct piece){.seq = at->seq, .p = (uint8_t *)l->text, .n = l->n, .id = l->id, .n_id = l->n_id};
        pieces_add(&s->lines, x);
    } else if (!x) {
        err_nomem(&s->reader_err, "a line", l->n);
    }
    pthread_mutex_unlock(&s->lock);
    if (ok) {
        service_wake(s);
    } else {
        ask_line_free(l);
        free(x);
    }
    return ok;
}

static int text(struct err *e, struct service *s, const char *p, size_t n, uint64_t line, bool *go_on)
{
    struct ask_line out = {0};
    if (n > WIRE_STR_BYTES_MAX)
        out.n = n; /* the gateway refuses it as too long */
    else if (ask_line_of_text(e, &out, s->o->ask, s->o->raw, p, n))
        return e->code;
    *go_on = give(s, &out, line);
    return 0;
}

static int json(struct err *e, struct service *s, const char *p, size_t n, uint64_t line, bool *go_on)
{
    struct ask_line out = {0};
    if (n > GATEWAY_LINE_BYTES_MAX)
        out.n = n;
    else if (ask_line_with_flags(e, &out, s->o->ask, p, n))
        return e->code;
    *go_on = give(s, &out, line);
    return 0;
}

static int each_line(struct err *e, struct service *s, struct lines *l)
{
    for (bool go_on = true; go_on;) {
        const char *p;
        size_t n = 0;
        int rc = s->o->lines ? lines_next(e, l, &p, &n) : lines_next_json(e, l, &p, &n);
        if (rc || !p)
            return rc;
        if (s->o->lines)
            rc = text(e, s, p, s->o->raw || n > WIRE_STR_BYTES_MAX ? n : lines_without_return(p, n), l->number, &go_on);
        else
            rc = json(e, s, p, n, l->number, &go_on);
        if (rc)
            return rc;
    }
    return 0;
}

static int whole(struct err *e, struct service *s, struct lines *l)
{
    char *p = NULL;
    size_t n = 0;
    bool go_on;
    if (lines_all(e, l, &p, &n))
        return e->code;
    if (!s->o->raw)
        n = lines_message(p, n);
    int rc = text(e, s, p ? p : "", n, 0, &go_on);
    free(p);
    return rc;
}

void *reader(void *arg)
{
    struct service *s = arg;
    struct lines l = {.fd = STDIN_FILENO, .name = "stdin"};
    struct err e = {0};
    bool go_on;
    int rc;
    if (s->o->prompt)
        rc = text(&e, s, s->o->prompt, strlen(s->o->prompt), 0, &go_on);
    else if (s->o->lines || s->o->jsonl)
        rc = each_line(&e, s, &l);
    else
        rc = whole(&e, s, &l);
    lines_free(&l);
    pthread_mutex_lock(&s->lock);
    if (rc)
        s->reader_err = e;
    s->input_over = s->reader_over = true;
    pthread_mutex_unlock(&s->lock);
    service_wake(s);
    return NULL;
}
