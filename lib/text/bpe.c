/*
 * BPE merges. The symbols of a piece form a linked list and the possible merges a heap by (rank, position), so a piece
 * of n bytes costs O(n log n). A heap entry is stale if the pair that is now at its position merges to another id.
 */
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"
#include "text/text_private.h"

static size_t hash_pair(uint64_t pair)
{
    pair *= 0x9e3779b97f4a7c15u;
    return (size_t)(pair ^ pair >> 29);
}

int text_merges_new(struct err *e, struct text_merges *m, size_t n)
{
    size_t n_slot = 16;
    while (n_slot < 2 * n)
        n_slot *= 2;
    m->slot = malloc(n_slot * sizeof *m->slot);
    if (!m->slot)
        return err_nomem(e, "merges", n_slot * sizeof *m->slot);
    m->n_slot = n_slot;
    memset(m->slot, 0xff, n_slot * sizeof *m->slot);
    return 0;
}

/* If a pair occurs twice in the file, the last rank counts, as in a map that is filled in the order of the file. */
void text_merges_put(struct text_merges *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    size_t i = hash_pair(pair) & (m->n_slot - 1);
    while (m->slot[i].pair != UINT64_MAX && m->slot[i].pair != pair)
        i = (i + 1) & (m->n_slot - 1);
    m->slot[i] = (struct text_merge){pair, rank, id};
}

static const struct text_merge *merge_find(const struct text_merges *m, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    size_t i = hash_pair(pair) & (m->n_slot - 1);
    for (; m->slot[i].pair != UINT64_MAX; i = (i + 1) & (m->n_slot - 1))
        if (m->slot[i].pair == pair)
            return &m->slot[i];
    return NULL;
}

void text_bpe_free(struct text_bpe *b)
{
    free(b->sym);
    free(b->heap);
}

/* n symbols give n - 1 first candidates; each of at most n - 1 merges adds two and removes one. */
static int reserve(struct err *e, struct text_bpe *b, size_t n)
{
    int rc = vec_reserve(e, &b->sym, &b->cap_sym, n, sizeof *b->sym, "symbols of a piece of text");
    return rc ? rc : vec_reserve(e, &b->heap, &b->cap_heap, 2 * n, sizeof *b->heap, "merges of a piece of text");
}

static bool before(const struct text_step *a, const struct text_step *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos;
}

static void heap_push(struct text_bpe *b, struct text_step s)
{
    size_t i = b->n_heap++;
    for (size_t up; i > 0 && before(&s, &b->heap[up = (i - 1) / 2]); i = up)
        b->heap[i] = b->heap[up];
    b->heap[i] = s;
}

static struct text_step heap_pop(struct text_bpe *b)
{
    struct text_step top = b->heap[0], s = b->heap[--b->n_heap];
    size_t i = 0;
    for (;;) {
        size_t down = 2 * i + 1;
        if (down >= b->n_heap)
            break;
        if (down + 1 < b->n_heap && before(&b->heap[down + 1], &b->heap[down]))
            down++;
        if (!before(&b->heap[down], &s))
            break;
        b->heap[i] = b->heap[down];
        i = down;
    }
    b->heap[i] = s;
    return top;
}

static void push_candidate(struct text_bpe *b, const struct text_merges *m, uint32_t pos)
{
    uint32_t next = b->sym[pos].next;
    if (next == TEXT_NONE)
        return;
    const struct text_merge *g = merge_find(m, b->sym[pos].id, b->sym[next].id);
    if (g)
        heap_push(b, (struct text_step){g->rank, pos, g->id});
}

static void apply_merge(struct text_bpe *b, const struct text_merges *m, const struct text_step *s)
{
    struct text_symbol *left = &b->sym[s->pos];
    if (left->id == TEXT_NONE || left->next == TEXT_NONE)
        return;
    struct text_symbol *right = &b->sym[left->next];
    const struct text_merge *g = merge_find(m, left->id, right->id);
    if (!g || g->id != s->id)
        return;
    left->id = g->id;
    left->next = right->next;
    right->id = TEXT_NONE;
    if (left->next != TEXT_NONE)
        b->sym[left->next].prev = s->pos;
    if (left->prev != TEXT_NONE)
        push_candidate(b, m, left->prev);
    push_candidate(b, m, s->pos);
}

int text_bpe_encode(struct err *e, struct text_ids *out, struct text_bpe *b, const struct text *t, const uint8_t *s,
                    size_t n)
{
    int rc = reserve(e, b, n);
    if (rc)
        return rc;
    uint32_t n_sym = 0;
    for (size_t i = 0; i < n; i++) {
        if (t->byte_id[s[i]] == TEXT_NONE)
            continue;
        b->sym[n_sym] = (struct text_symbol){t->byte_id[s[i]], n_sym - 1, n_sym + 1};
        n_sym++;
    }
    if (n_sym == 0)
        return 0;
    b->sym[n_sym - 1].next = TEXT_NONE;
    b->n_heap = 0;
    for (uint32_t i = 0; i < n_sym; i++)
        push_candidate(b, &t->merges, i);
    while (b->n_heap > 0) {
        struct text_step step = heap_pop(b);
        apply_merge(b, &t->merges, &step);
    }
    for (uint32_t i = 0; i != TEXT_NONE; i = b->sym[i].next) {
        rc = text_ids_push(e, out, b->sym[i].id);
        if (rc)
            return rc;
    }
    return 0;
}
