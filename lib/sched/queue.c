/* A skip list sorted by priority, start tag (tenant.c), deadline and arrival: the next request is one pointer away,
 * insertion is logarithmic. Levels come from the bits of a counter, so that runs are reproducible. */
#include "sched/machine.h"

static bool before(const struct request *a, const struct request *b)
{
    if (a->pub.priority != b->pub.priority)
        return a->pub.priority < b->pub.priority;
    if (a->start < b->start || a->start > b->start)
        return a->start < b->start;
    if (a->key_deadline != b->key_deadline)
        return a->key_deadline < b->key_deadline;
    return a->pub.number < b->pub.number;
}

/* path: for each level the last request before r, NULL for the head. */
static void find(struct queue *q, struct request *path[SKIP_LEVELS], const struct request *r)
{
    struct request *at = NULL;
    for (int l = SKIP_LEVELS - 1; l >= 0; l--) {
        struct request *next = at ? at->skip.next[l] : q->first[l];
        while (next && before(next, r)) {
            at = next;
            next = at->skip.next[l];
        }
        path[l] = at;
    }
}

void queue_add(struct queue *q, struct request *r)
{
    struct request *path[SKIP_LEVELS];
    find(q, path, r);
    uint64_t bits = map_mix(++q->seed) | (uint64_t)1 << (2 * (SKIP_LEVELS - 1));
    r->skip.n = (uint8_t)(__builtin_ctzll(bits) / 2 + 1); /* a quarter of a level reaches the next */
    for (int l = 0; l < SKIP_LEVELS; l++) {
        struct request **from = path[l] ? &path[l]->skip.next[l] : &q->first[l];
        r->skip.next[l] = l < r->skip.n ? *from : NULL;
        if (l < r->skip.n)
            *from = r;
    }
    r->skip.prev = path[0];
    if (r->skip.next[0])
        r->skip.next[0]->skip.prev = r;
    q->n++;
    q->tokens += r->pub.n_prompt;
}

void queue_drop(struct queue *q, struct request *r)
{
    struct request *path[SKIP_LEVELS];
    if (r->skip.n > 1)
        find(q, path, r);
    path[0] = r->skip.prev;
    for (int l = 0; l < r->skip.n; l++) {
        struct request **from = path[l] ? &path[l]->skip.next[l] : &q->first[l];
        *from = r->skip.next[l];
    }
    if (r->skip.next[0])
        r->skip.next[0]->skip.prev = r->skip.prev;
    r->skip.n = 0;
    q->n--;
    q->tokens -= r->pub.n_prompt;
}
