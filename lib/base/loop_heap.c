/* A timer's children form a list by `next`; `prev` of the first child is its parent, of the others the previous
 * sibling. */
#include "base/loop_heap.h"

#include "base/loop.h"

/* Merges two heaps: the later root becomes the first child of the earlier. If equal, `a` stays the root. */
static struct loop_timer *meld(struct loop_timer *a, struct loop_timer *b)
{
    if (!a || !b)
        return a ? a : b;
    if (b->at_ns < a->at_ns) {
        struct loop_timer *t = a;
        a = b;
        b = t;
    }
    b->prev = a;
    b->next = a->child;
    if (b->next)
        b->next->prev = b;
    a->child = b;
    return a;
}

/* Merges siblings into one heap: first in pairs from the left, then the pairs from the right. */
static struct loop_timer *meld_all(struct loop_timer *t)
{
    struct loop_timer *pairs = NULL, *root = NULL;
    while (t) {
        struct loop_timer *a = t, *b = t->next;
        t = b ? b->next : NULL;
        a->next = a->prev = NULL;
        if (b)
            b->next = b->prev = NULL;
        a = meld(a, b);
        a->next = pairs;
        pairs = a;
    }
    while (pairs) {
        struct loop_timer *a = pairs;
        pairs = a->next;
        a->next = NULL;
        root = meld(root, a);
    }
    return root;
}

struct loop_timer *loop_heap_add(struct loop_timer *root, struct loop_timer *t)
{
    t->child = t->next = t->prev = NULL;
    return meld(root, t);
}

struct loop_timer *loop_heap_remove(struct loop_timer *root, struct loop_timer *t)
{
    struct loop_timer *below = meld_all(t->child);
    t->child = NULL;
    if (t == root)
        return below;
    if (t->next)
        t->next->prev = t->prev;
    *(t->prev->child == t ? &t->prev->child : &t->prev->next) = t->next;
    t->next = t->prev = NULL;
    return meld(root, below);
}
