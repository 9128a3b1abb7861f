/*
 * Outputs answers in the order of the input. The current answer is printed as it arrives (text); the others wait. With
 * JSON each is printed when it is complete. After (seq, index) follows the next choice of the same request, or the next
 * request. An answer that arrives after its turn was skipped is printed when it is complete.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "cmd/stream/stream.h"

struct item {
    struct list node; /* in order of (seq, index) */
    struct reply *r;
    char *id;
    bool done;
    size_t shown;      /* bytes of text already printed */
    json_t *json;      /* of a finished one, with --jsonl */
    uint32_t n_choice; /* of a finished one; 0: it failed, and the number is unknown */
};

struct order {
    const struct view *v;
    struct list items;
    uint64_t seq; /* the current answer is (seq, index) */
    uint32_t index;
    bool any;                /* something was printed: the next text needs a blank line before it */
    bool mid_line;           /* the last text printed did not end its line */
    const struct item *open; /* text that is partly printed */
};

int order_new(struct err *e, struct order **out, const struct view *v)
{
    struct order *o = calloc(1, sizeof *o);
    if (!o)
        return err_nomem(e, "answers", sizeof *o);
    o->v = v;
    list_init(&o->items);
    *out = o;
    return 0;
}

static void item_free(struct item *i)
{
    list_remove(&i->node);
    reply_free(i->r);
    json_decref(i->json);
    free(i->id);
    free(i);
}

void order_free(struct order *o)
{
    if (!o)
        return;
    list_each_safe (struct item, i, &o->items, node)
        item_free(i);
    free(o);
}

static int compare(const struct item *i, uint64_t seq, uint32_t index)
{
    if (i->r->seq != seq)
        return i->r->seq < seq ? -1 : 1;
    return i->r->index == index ? 0 : i->r->index < index ? -1 : 1;
}

/* Finds or creates the item of an answer. */
static struct item *item_of(struct err *e, struct order *o, uint64_t seq, uint32_t index, struct wire_str id)
{
    struct list *at = o->items.next;
    while (at != &o->items && compare(list_entry(at, struct item, node), seq, index) < 0)
        at = at->next;
    struct item *i = at != &o->items ? list_entry(at, struct item, node) : NULL;
    if (i && !compare(i, seq, index) && !i->done)
        return i;
    i = calloc(1, sizeof *i);
    if (!i) {
        err_nomem(e, "answer", sizeof *i);
        return NULL;
    }
    list_insert_before(at, &i->node);
    i->id = strndup(id.p ? id.p : "", id.n);
    i->r = reply_new(seq, index);
    if (i->id && i->r)
        return i;
    item_free(i);
    err_nomem(e, "answer", sizeof *i);
    return NULL;
}

static int flush(struct err *e)
{
    return fflush(stdout) || ferror(stdout) ? err_sys(e, "stdout") : 0;
}

/* ---- text ---- */

static int show_text(struct err *e, struct order *o, struct item *i)
{
    size_t n = i->r->n_text - i->shown;
    if (!n && !i->done)
        return 0;
    if (o->open != i) {
        if (o->any)
            putchar('\n');
        o->open = i;
        o->any = true;
    }
    if (n) {
        fwrite(i->r->text + i->shown, 1, n, stdout);
        o->mid_line = i->r->text[i->r->n_text - 1] != '\n';
    }
    i->shown += n;
    if (i->done) {
        if (o->mid_line || !i->r->n_text)
            putchar('\n');
        o->mid_line = false;
        o->open = NULL;
    }
    return flush(e);
}

void order_end_line(struct order *o)
{
    if (o->mid_line)
        putchar('\n');
    o->mid_line = false;
    fflush(stdout);
}

/* ---- order ---- */

static int show(struct err *e, struct order *o, struct item *i)
{
    if (!o->v->jsonl)
        return i->n_choice || i->r->n_text ? show_text(e, o, i) : 0; /* nothing if it failed before its first text */
    json_dumpf(i->json, stdout, JSON_COMPACT);
    putchar('\n');
    return flush(e);
}

static void drop(const struct order *o, struct item *i)
{
    if (o->v->shown)
        o->v->shown(o->v->arg, i->r->seq, i->n_choice ? i->n_choice : 1);
    item_free(i);
}

/* Prints every finished answer up to the current one. */
static int turn(struct err *e, struct order *o)
{
    list_each_safe (struct item, i, &o->items, node) {
        int c = compare(i, o->seq, o->index);
        if (!o->v->unordered && c > 0)
            break;
        /* A partly printed text is not interrupted by a late answer. */
        if (!i->done || (o->open && o->open != i))
            continue;
        if (!c) {
            bool more = o->index + 1 < i->n_choice;
            o->seq += !more;
            o->index = more ? o->index + 1 : 0;
        }
        if (show(e, o, i))
            return e->code;
        drop(o, i);
    }
    /* A part of the next text may have arrived already. */
    if (o->v->jsonl || o->v->unordered || o->open)
        return 0;
    list_each (struct item, i, &o->items, node)
        if (!i->done && !compare(i, o->seq, o->index))
            return show_text(e, o, i);
    return 0;
}

int order_out(struct err *e, struct order *o, const struct wire_out *w, const struct text *vocab)
{
    struct item *i = item_of(e, o, w->seq, w->index, w->id);
    if (!i || reply_add(e, i->r, w, vocab))
        return e->code;
    bool mine = !compare(i, o->seq, o->index) && !o->v->unordered && !o->v->jsonl;
    return mine && (!o->open || o->open == i) ? show_text(e, o, i) : 0;
}

int order_end(struct err *e, struct order *o, const struct wire_end *w)
{
    struct item *i = item_of(e, o, w->seq, w->index, w->id);
    json_t *extra = NULL;
    if (!i)
        return e->code;
    int rc = reply_extra(e, &extra, &i->n_choice, &w->extra);
    if (!rc && o->v->jsonl)
        rc = reply_json(e, &i->json, i->r, w, extra);
    json_decref(extra);
    if (!rc && o->v->stats)
        rc = stats_add(e, o->v->stats, w);
    i->done = true;
    return rc ? rc : turn(e, o);
}

int order_error(struct err *e, struct order *o, const struct wire_error *w)
{
    struct item *i = item_of(e, o, w->seq, w->index, w->id);
    json_t *extra = NULL;
    if (!i)
        return e->code;
    int rc = reply_extra(e, &extra, &i->n_choice, &w->extra);
    if (!json_object_size(extra) && i->n_choice == 1)
        i->n_choice = 0;
    if (!rc && o->v->jsonl)
        rc = reply_error_json(e, &i->json, i->r, w, extra);
    json_decref(extra);
    i->done = true;
    return rc ? rc : turn(e, o);
}

int order_bye(struct err *e, struct order *o)
{
    const struct item *lost = NULL;
    list_each_safe (struct item, i, &o->items, node) {
        if (!i->done) {
            lost = lost ? lost : i;
            continue;
        }
        if (show(e, o, i))
            return e->code;
        drop(o, i);
    }
    if (lost)
        return err_set(e, ERR_PROTO, "request %.100s: the stream ended before the end frame of its answer", lost->id);
    o->seq = 0;
    o->index = 0;
    return 0;
}
