/* A skip list: the order is (priority, deadline, arrival), a step to the next is one pointer, the rest is logarithmic.
 * Levels come from a counter's bits, so that a run can be repeated. */
#include "sched/machine.h"

static bool before(const struct job *a, const struct job *b)
{
    if (a->pub.priority != b->pub.priority)
        return a->pub.priority < b->pub.priority;
    if (a->key_deadline != b->key_deadline)
        return a->key_deadline < b->key_deadline;
    return a->pub.number < b->pub.number;
}

/* For each level the last job before j, NULL for the head. */
static void find(struct queue *q, struct job *path[SKIP_LEVELS], const struct job *j)
{
    struct job *at = NULL;
    for (int l = SKIP_LEVELS - 1; l >= 0; l--) {
        struct job *next = at ? at->skip.next[l] : q->first[l];
        while (next && before(next, j)) {
            at = next;
            next = at->skip.next[l];
        }
        path[l] = at;
    }
}

void queue_add(struct queue *q, struct job *j)
{
    struct job *path[SKIP_LEVELS];
    find(q, path, j);
    uint64_t bits = mix64(++q->seed) | (uint64_t)1 << (2 * (SKIP_LEVELS - 1));
    j->skip.n = (uint8_t)(__builtin_ctzll(bits) / 2 + 1); /* a quarter of a level reaches the next */
    for (int l = 0; l < SKIP_LEVELS; l++) {
        struct job **from = path[l] ? &path[l]->skip.next[l] : &q->first[l];
        j->skip.next[l] = l < j->skip.n ? *from : NULL;
        if (l < j->skip.n)
            *from = j;
    }
    j->skip.prev = path[0];
    if (j->skip.next[0])
        j->skip.next[0]->skip.prev = j;
    q->n++;
    q->tokens += j->pub.n_prompt;
}

void queue_drop(struct queue *q, struct job *j)
{
    struct job *path[SKIP_LEVELS];
    if (j->skip.n > 1)
        find(q, path, j);
    path[0] = j->skip.prev;
    for (int l = 0; l < j->skip.n; l++) {
        struct job **from = path[l] ? &path[l]->skip.next[l] : &q->first[l];
        *from = j->skip.next[l];
    }
    if (j->skip.next[0])
        j->skip.next[0]->skip.prev = j->skip.prev;
    j->skip.n = 0;
    q->n--;
    q->tokens -= j->pub.n_prompt;
}
