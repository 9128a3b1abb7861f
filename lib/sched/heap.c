/* Requests that have a deadline, the next one on top. */
#include "sched/machine.h"

#include <stdlib.h>

#include "base/vec.h"

static void set(struct heap *h, size_t i, struct job *j)
{
    h->v[i] = j;
    j->heap_at = i + 1;
}

static void up(struct heap *h, size_t i, struct job *j)
{
    while (i && h->v[(i - 1) / 2]->pub.deadline_ns > j->pub.deadline_ns) {
        set(h, i, h->v[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    set(h, i, j);
}

int heap_add(struct err *e, struct heap *h, struct job *j)
{
    int rc = vec_reserve(e, &h->v, &h->size, h->n + 1, sizeof *h->v, "deadlines");
    if (!rc)
        up(h, h->n++, j);
    return rc;
}

void heap_drop(struct heap *h, struct job *j)
{
    if (!j->heap_at)
        return;
    size_t i = j->heap_at - 1;
    struct job *last = h->v[--h->n];
    j->heap_at = 0;
    if (last == j)
        return;
    while (2 * i + 1 < h->n) {
        size_t c = 2 * i + 1;
        c += c + 1 < h->n && h->v[c + 1]->pub.deadline_ns < h->v[c]->pub.deadline_ns;
        if (h->v[c]->pub.deadline_ns >= last->pub.deadline_ns)
            break;
        set(h, i, h->v[c]);
        i = c;
    }
    up(h, i, last);
}
