/*
 * Merges several streams into one. Each input has a thread, which also opens it (opening a fifo waits for its writer).
 * All wait until every hello has been read and compared; then whole frames are written as they arrive, one at a time.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/frames/frames.h"

struct merge {
    struct wire_writer *w;
    pthread_mutex_t lock; /* protects all fields below */
    pthread_cond_t changed;
    size_t n_in, n_hello, n_done;
    uint8_t *hello; /* the first one, encoded */
    size_t n_hello_bytes;
    const char *hello_of;
    struct owners *owners;
    uint64_t n_ok, n_error;
    struct err e;
};

struct input {
    struct merge *m;
    const char *file;
    uint32_t number;
    pthread_t thread;
};

static bool same(struct wire_bytes a, struct wire_bytes b)
{
    return a.n == b.n && (!a.n || !memcmp(a.p, b.p, a.n));
}

static struct wire_bytes bytes(struct wire_str s)
{
    return (struct wire_bytes){(const uint8_t *)s.p, s.n};
}

/* Names the difference between two hellos. */
static const char *difference(const struct wire_hello *a, const struct wire_hello *b)
{
    if (a->has_vocab != b->has_vocab || a->has_kv != b->has_kv)
        return "one has a section that the other lacks";
    if (!same(a->vocab_fp, b->vocab_fp) || a->vocab_n != b->vocab_n)
        return "different vocabularies";
    if (!same(a->model_fp, b->model_fp))
        return "KV of different models";
    if (!same(bytes(a->kv_type), bytes(b->kv_type)))
        return "KV of different types";
    if (!same(bytes(a->arith), bytes(b->arith)))
        return "KV of different arithmetic";
    return "different hello frames";
}

static int join_hello(struct err *e, struct merge *m, const struct wire_hello *h, uint8_t *enc, size_t n,
                      const char *name)
{
    if (!m->hello) {
        m->hello = enc;
        m->n_hello_bytes = n;
        m->hello_of = name;
        return 0;
    }
    int rc = 0;
    if (n != m->n_hello_bytes || memcmp(enc, m->hello, n)) {
        struct wire_frame first;
        struct wire_arena *a = wire_arena_new();
        const char *why = "different hello frames";
        if (a && !wire_decode(e, &first, a, m->hello, m->n_hello_bytes))
            why = difference(&first.hello, h);
        rc = err_set(e, ERR_PROTO, "%s and %s cannot be merged: %s", m->hello_of, name, why);
        wire_arena_free(a);
    }
    free(enc);
    return rc;
}

/* Adds one hello. The first one of an input waits for those of all others; the last of these writes it. */
static int take_hello(struct err *e, struct merge *m, const struct wire_frame *f, const char *name, bool first)
{
    struct wire_frame g = *f;
    uint8_t *enc;
    size_t n;
    g.hello.from = (struct wire_str){PROG, sizeof PROG - 1};
    int rc = wire_encode(e, &enc, &n, &g);
    if (rc)
        return rc;
    pthread_mutex_lock(&m->lock);
    rc = join_hello(e, m, &g.hello, enc, n, name);
    if (first && !rc && ++m->n_hello == m->n_in) {
        rc = wire_write_raw(e, m->w, m->hello, m->n_hello_bytes);
        pthread_cond_broadcast(&m->changed);
    }
    while (!rc && m->n_hello < m->n_in)
        pthread_cond_wait(&m->changed, &m->lock);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

static int claim(struct err *e, struct input *in, const char *name, const struct wire_frame *f)
{
    uint64_t seq;
    uint32_t index, owner;
    bool is_new;
    if (!frames_key(f, &seq, &index))
        return err_set(e, ERR_PROTO, "%s: %s frames are not expected here", name, wire_kind_name(f->kind));
    pthread_mutex_lock(&in->m->lock);
    int rc = owners_get(e, &owner, &is_new, in->m->owners, seq, index, in->number);
    pthread_mutex_unlock(&in->m->lock);
    bool begins = f->kind == WIRE_TOK || f->kind == WIRE_OPEN;
    if (rc || is_new || (owner == in->number && !begins))
        return rc;
    return err_set(e, ERR_PROTO, "%s: request %llu, %u is a duplicate: it came before from %s", name,
                   (unsigned long long)seq, index, owner == in->number ? "the same input" : "another input");
}

static int pass(struct err *e, struct input *in, const char *name, struct wire_reader *r, const struct wire_frame *f)
{
    uint8_t *frame;
    size_t n;
    int rc = claim(e, in, name, f);
    rc = rc ? rc : frames_take(e, &frame, &n, r, f);
    if (rc)
        return rc;
    rc = wire_write_raw(e, in->m->w, frame, n);
    free(frame);
    return rc;
}

static int read_input(struct err *e, struct input *in, const char *name, struct wire_reader *r)
{
    struct wire_frame *f = NULL;
    bool first = true;
    for (;;) {
        int rc = wire_read(e, r, &f);
        if (rc)
            return rc;
        if (!f)
            return first ? err_set(e, ERR_PROTO, "%s: ended without hello: the previous program failed or was killed",
                                   name)
                         : 0;
        if (f->kind == WIRE_HELLO) {
            rc = take_hello(e, in->m, f, name, first);
            first = false;
        } else if (f->kind == WIRE_BYE) {
            pthread_mutex_lock(&in->m->lock);
            in->m->n_ok += f->bye.n_ok;
            in->m->n_error += f->bye.n_error;
            pthread_mutex_unlock(&in->m->lock);
        } else {
            rc = pass(e, in, name, r, f);
        }
        if (rc)
            return rc;
    }
}

static void *input_main(void *arg)
{
    struct input *in = arg;
    struct merge *m = in->m;
    struct err e = {0};
    struct wire_reader *r;
    const char *name;
    int fd, rc = frames_open_in(&e, &fd, &name, in->file);
    if (!rc) {
        rc = wire_reader_new(&e, &r, fd, name);
        if (!rc) {
            rc = read_input(&e, in, name, r);
            wire_reader_free(r);
        }
        close(fd);
    }
    pthread_mutex_lock(&m->lock);
    if (rc && !m->e.code)
        m->e = e;
    m->n_done++;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

static int run(struct err *e, struct merge *m, struct input *in, char **files)
{
    for (uint32_t i = 0; i < m->n_in; i++) {
        in[i] = (struct input){.m = m, .file = files[i], .number = i};
        errno = pthread_create(&in[i].thread, NULL, input_main, &in[i]);
        if (errno)
            return err_sys(e, "cannot create a thread for %s", files[i]);
    }
    pthread_mutex_lock(&m->lock);
    while (!m->e.code && m->n_done < m->n_in)
        pthread_cond_wait(&m->changed, &m->lock);
    int rc = m->e.code;
    if (rc)
        *e = m->e;
    pthread_mutex_unlock(&m->lock);
    if (rc)
        return rc;
    for (size_t i = 0; i < m->n_in; i++)
        pthread_join(in[i].thread, NULL);
    struct wire_frame f = {.kind = WIRE_BYE,
                           .bye = {.from = {PROG, sizeof PROG - 1}, .n_ok = m->n_ok, .n_error = m->n_error}};
    return wire_write(e, m->w, &f);
}

/* On an error this returns without waiting for the threads, because one may wait in a read; they end with the
 * process. */
int frames_merge(struct err *e, char **files, size_t n_in)
{
    struct merge *m = calloc(1, sizeof *m);
    struct input *in = calloc(n_in, sizeof *in);
    if (m)
        m->owners = owners_new();
    if (!m || !in || !m->owners)
        return err_nomem(e, "inputs", n_in * sizeof *in);
    m->n_in = n_in;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    int rc = wire_writer_new(e, &m->w, STDOUT_FILENO, "stdout");
    rc = rc ? rc : run(e, m, in, files);
    if (rc)
        return rc;
    wire_writer_free(m->w);
    owners_free(m->owners);
    free(m->hello);
    free(m);
    free(in);
    return 0;
}
