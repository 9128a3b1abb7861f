#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kv/arena.h"
#include "kv/bytes.h"

struct kv_pool {
    struct kv_pool_head head;
    uint64_t map_bytes; /* 0: the slots are in an arena */
    pthread_mutex_t lock;
    int32_t *idle; /* [n_slot] stack of idle slots */
    int64_t n_idle, n_slot;
};

void kv_layout_init(struct kv_layout *l, enum kern_kv type, int64_t n_layer, int n_kv_head, int head_dim)
{
    *l = (struct kv_layout){.type = type, .n_layer = n_layer, .n_kv_head = n_kv_head, .head_dim = head_dim};
    l->tile_bytes = kern_kv_tile_bytes(type, head_dim);
    l->layer_bytes = l->tile_bytes * (size_t)n_kv_head;
    size_t pages = (l->layer_bytes * (size_t)n_layer + 4095) / 4096;
    l->slot_bytes = (pages | 1) * 4096;
}

int kv_pool_new(struct err *e, struct kv_pool **out, const struct kv_layout *l, uint64_t bytes)
{
    uint64_t n = bytes / l->slot_bytes;
    if (n < 1)
        return err_set(e, ERR_NO, "a KV budget of %llu bytes is too small: one block needs %zu bytes",
                       (unsigned long long)bytes, l->slot_bytes);
    if (n > INT32_MAX)
        n = INT32_MAX;
    struct kv_pool *p = calloc(1, sizeof *p);
    if (!p)
        return err_nomem(e, "a KV pool", sizeof *p);
    p->head.layout = *l;
    p->n_slot = (int64_t)n;
    p->map_bytes = n * l->slot_bytes;
    p->idle = malloc(n * sizeof *p->idle);
    void *m = p->idle
                  ? mmap(NULL, p->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                  : MAP_FAILED;
    if (m == MAP_FAILED) {
        free(p->idle);
        free(p);
        return err_nomem(e, "the KV pool", n * l->slot_bytes);
    }
    madvise(m, p->map_bytes, MADV_HUGEPAGE); /* best effort */
    p->head.arena = m;
    pthread_mutex_init(&p->lock, NULL);
    for (int64_t i = 0; i < p->n_slot; i++) /* low slots are used first, to touch little memory */
        p->idle[i] = (int32_t)(p->n_slot - 1 - i);
    p->n_idle = p->n_slot;
    *out = p;
    return 0;
}

void kv_pool_free(struct kv_pool *p)
{
    if (!p)
        return;
    if (p->map_bytes)
        munmap(p->head.arena, p->map_bytes);
    pthread_mutex_destroy(&p->lock);
    free(p->idle);
    free(p);
}

int kv_pool_of_arena(struct err *e, struct kv_pool **out, struct kv_arena *a)
{
    uint64_t n = kv_arena_head(a)->n_slot;
    struct kv_pool *p = calloc(1, sizeof *p);
    if (!p)
        return err_nomem(e, "a KV pool", sizeof *p);
    p->head.layout = *kv_arena_layout(a);
    p->head.arena = kv_arena_bytes(a, 0);
    p->n_slot = (int64_t)n;
    p->idle = malloc(n * sizeof *p->idle);
    if (!p->idle) {
        free(p);
        return err_nomem(e, "a KV pool", n * sizeof(int32_t));
    }
    pthread_mutex_init(&p->lock, NULL);
    *out = p;
    return 0;
}

void kv_pool_put(struct kv_pool *p, const int32_t *slot, int64_t n)
{
    pthread_mutex_lock(&p->lock);
    for (int64_t i = 0; i < n && p->n_idle < p->n_slot; i++)
        p->idle[p->n_idle++] = slot[i];
    pthread_mutex_unlock(&p->lock);
}

int64_t kv_pool_get(struct kv_pool *p, int32_t *slot, int64_t n)
{
    int64_t got = 0;
    pthread_mutex_lock(&p->lock);
    while (got < n && p->n_idle)
        slot[got++] = p->idle[--p->n_idle];
    pthread_mutex_unlock(&p->lock);
    return got;
}

const struct kv_layout *kv_pool_layout(const struct kv_pool *p)
{
    return &p->head.layout;
}

int64_t kv_pool_slots(const struct kv_pool *p)
{
    return p->n_slot;
}

int64_t kv_pool_idle(struct kv_pool *p)
{
    pthread_mutex_lock(&p->lock);
    int64_t n = p->n_idle;
    pthread_mutex_unlock(&p->lock);
    return n;
}

int kv_table_grow(struct err *e, struct kv_table *t, struct kv_pool *p, int64_t n_block)
{
    if (n_block <= t->n)
        return 0;
    if (n_block > t->cap) {
        int64_t cap = t->cap ? t->cap : 8;
        while (cap < n_block)
            cap *= 2;
        int32_t *s = realloc(t->slot, (size_t)cap * sizeof *s);
        if (!s)
            return err_nomem(e, "a block table", (size_t)cap * sizeof *s);
        t->slot = s;
        t->cap = cap;
    }
    pthread_mutex_lock(&p->lock);
    int64_t want = n_block - t->n, idle = p->n_idle;
    if (want <= idle)
        while (t->n < n_block)
            t->slot[t->n++] = p->idle[--p->n_idle];
    pthread_mutex_unlock(&p->lock);
    if (want > idle)
        return err_set(e, ERR_NO, "the KV pool is full: %lld blocks requested, %lld of %lld are idle", (long long)want,
                       (long long)idle, (long long)p->n_slot);
    return 0;
}

void kv_table_release(struct kv_table *t, struct kv_pool *p)
{
    pthread_mutex_lock(&p->lock);
    while (t->n)
        p->idle[p->n_idle++] = t->slot[--t->n];
    pthread_mutex_unlock(&p->lock);
    free(t->slot);
    *t = (struct kv_table){0};
}
