#include "phase/emit.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define QUEUED_MAX 16384

struct item {
    struct item *next;
    uint8_t *frame; /* encoded */
    size_t n;
    struct request *done;
    struct wire_blk blk;
    int32_t slot;
};

struct emit {
    struct stage *s;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, less;
    struct item *head, **tail;
    struct item *spare; /* free list, so that queueing a block rarely allocates */
    int64_t n_pending, n_item;
    uint8_t *packed; /* buffer for engine_kv_read */
    struct err err;
    bool stop;
};

static int write_block(struct err *e, struct emit *m, struct item *it)
{
    const struct kv_layout *l = &m->s->layout;
    struct wire_blk *b = &it->blk;
    struct kv_part p = {it->slot, b->layer, b->n_layer, (int)b->n_token};
    const uint8_t *bytes;
    int rc = engine_kv_read(e, m->s->g, &bytes, &p, m->packed);
    if (rc)
        return rc;
    struct iovec iov = {(void *)(uintptr_t)bytes, kv_packed_bytes(l, b->n_layer, (int)b->n_token)};
    b->sum = wire_sum(bytes, iov.iov_len);
    return wire_write_blk(e, m->s->out, b, &iov, 1);
}

static int write_item(struct err *e, struct emit *m, struct item *it)
{
    if (it->frame)
        return wire_write_raw(e, m->s->out, it->frame, it->n);
    return it->done ? 0 : write_block(e, m, it);
}

static void *emit_main(void *p)
{
    struct emit *m = p;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        while (!m->head && !m->stop)
            pthread_cond_wait(&m->more, &m->lock);
        struct item *it = m->head;
        if (!it)
            break;
        m->head = it->next;
        if (!m->head)
            m->tail = &m->head;
        bool failed = m->err.code != 0;
        pthread_mutex_unlock(&m->lock);
        struct err e = {0};
        if (!failed)
            write_item(&e, m, it);
        if (it->done)
            request_free(it->done, m->s->pool);
        free(it->frame);
        pthread_mutex_lock(&m->lock);
        if (e.code && !m->err.code)
            m->err = e;
        m->n_pending -= it->done != NULL;
        m->n_item--;
        it->next = m->spare;
        m->spare = it;
        pthread_cond_signal(&m->less);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

int emit_new(struct err *e, struct emit **out, struct stage *s)
{
    struct emit *m = calloc(1, sizeof *m);
    size_t packed = kv_packed_bytes(&s->layout, s->layout.n_layer, KV_BLOCK);
    if (!m || !(m->packed = malloc(packed))) {
        free(m);
        return err_nomem(e, "the output queue", packed);
    }
    m->s = s;
    m->tail = &m->head;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->more, NULL);
    pthread_cond_init(&m->less, NULL);
    if (pthread_create(&m->thread, NULL, emit_main, m)) {
        free(m->packed);
        free(m);
        return err_sys(e, "cannot start the writing thread");
    }
    *out = m;
    return 0;
}

void emit_free(struct emit *m)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    if (!m->err.code)
        m->err.code = ERR_SYS; /* the rest of the queue is freed, not written */
    pthread_cond_signal(&m->more);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    while (m->spare) {
        struct item *it = m->spare;
        m->spare = it->next;
        free(it);
    }
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->more);
    pthread_cond_destroy(&m->less);
    free(m->packed);
    free(m);
}

/* A zeroed item, from the free list if possible. NULL: no memory; sets the error for the next flush. */
static struct item *item_new(struct emit *m)
{
    pthread_mutex_lock(&m->lock);
    struct item *it = m->spare;
    if (it)
        m->spare = it->next;
    pthread_mutex_unlock(&m->lock);
    if (it)
        memset(it, 0, sizeof *it);
    else
        it = calloc(1, sizeof *it);
    if (!it) {
        pthread_mutex_lock(&m->lock);
        err_nomem(&m->err, "the output queue", sizeof *it);
        pthread_mutex_unlock(&m->lock);
    }
    return it;
}

static void push(struct emit *m, struct item *it)
{
    pthread_mutex_lock(&m->lock);
    *m->tail = it;
    m->tail = &it->next;
    m->n_item++;
    m->n_pending += it->done != NULL;
    pthread_cond_signal(&m->more);
    pthread_mutex_unlock(&m->lock);
}

int emit_frame(struct err *e, struct emit *m, const struct wire_frame *f)
{
    struct item *it = item_new(m);
    if (!it)
        return err_nomem(e, "the output queue", sizeof *it);
    int rc = wire_encode(e, &it->frame, &it->n, f);
    if (rc)
        free(it);
    else
        push(m, it);
    return rc;
}

void emit_block(struct emit *m, const struct request *q, int64_t block, int32_t slot, int64_t layer, int64_t n_layer,
                int n_token)
{
    struct item *it = item_new(m);
    if (!it)
        return;
    it->slot = slot;
    it->blk = (struct wire_blk){.seq = q->r->seq,
                                .index = q->r->index,
                                .block = (uint64_t)block,
                                .layer = (uint32_t)layer,
                                .n_layer = (uint32_t)n_layer,
                                .n_token = (uint32_t)n_token};
    push(m, it);
}

void emit_done(struct emit *m, struct request *q)
{
    struct item *it = item_new(m);
    if (!it) { /* no memory: the run ends with that error */
        return;
    }
    it->done = q;
    push(m, it);
}

int64_t emit_pending(struct emit *m)
{
    pthread_mutex_lock(&m->lock);
    int64_t n = m->n_pending;
    pthread_mutex_unlock(&m->lock);
    return n;
}

static int wait_for(struct err *e, struct emit *m, const int64_t *count, int64_t n)
{
    pthread_mutex_lock(&m->lock);
    while (*count > n && !m->err.code)
        pthread_cond_wait(&m->less, &m->lock);
    int rc = m->err.code;
    if (rc)
        *e = m->err;
    pthread_mutex_unlock(&m->lock);
    return rc;
}

int emit_check(struct err *e, struct emit *m)
{
    return wait_for(e, m, &m->n_item, INT64_MAX);
}

int emit_wait(struct err *e, struct emit *m, int64_t n)
{
    return wait_for(e, m, &m->n_pending, n);
}

int emit_room(struct err *e, struct emit *m)
{
    return wait_for(e, m, &m->n_item, QUEUED_MAX);
}

int emit_flush(struct err *e, struct emit *m)
{
    return wait_for(e, m, &m->n_item, 0);
}
