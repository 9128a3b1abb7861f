/* The news of stores: a thread each that waits for its events, and goes on trying where the store is not there. */
#include <stdlib.h>
#include <string.h>

#include "link/store_client.h"
#include "proc/proc.h"
#include "sched/serve_impl.h"

#define NEWS_BYTES_MAX ((uint64_t)64 << 20) /* not taken yet; the threads wait */
#define CALL_MS 250
#define WAIT_MS 50 /* for events; then what is to be told is told */
#define RENEW_NS (250 * NS_MS)
#define GO_MAX 65536 /* handles to be ended at most; more end by themselves */

void news_free(struct news *n)
{
    if (!n)
        return;
    free((void *)(uintptr_t)n->blocks.stored.p);
    free((void *)(uintptr_t)n->blocks.evicted.p);
    free(n);
}

static uint64_t bytes_of(const struct news *n)
{
    return sizeof *n + n->blocks.stored.n + n->blocks.evicted.n;
}

static bool stopped(struct serve *v)
{
    pthread_mutex_lock(&v->lock);
    bool stop = v->stop;
    pthread_mutex_unlock(&v->lock);
    return stop;
}

/* Takes the digests of the event over. */
static void give(struct watch *w, struct store_event *x)
{
    struct serve *v = w->v;
    struct news *n = calloc(1, sizeof *n);
    if (!n) { /* what is not known is not hoped for: only hits are lost */
        store_event_free(x);
        return;
    }
    n->blocks = (struct wire_blocks){.store = wire_str_of(w->name),
                                     .reset = x->reset,
                                     .stored = {x->stored, x->n_stored * 32},
                                     .evicted = {x->evicted, x->n_evicted * 32}};
    pthread_mutex_lock(&v->lock);
    while (v->news_bytes > NEWS_BYTES_MAX && !v->stop)
        pthread_cond_wait(&v->room, &v->lock);
    *v->last_news = n;
    v->last_news = &n->next;
    v->news_bytes += bytes_of(n);
    pthread_mutex_unlock(&v->lock);
    link_box_wake(v->box);
}

struct news *stores_take(struct serve *v)
{
    pthread_mutex_lock(&v->lock);
    struct news *n = v->news;
    if (n) {
        v->news = n->next;
        if (!v->news)
            v->last_news = &v->news;
        v->news_bytes -= bytes_of(n);
        pthread_cond_broadcast(&v->room);
    }
    pthread_mutex_unlock(&v->lock);
    return n;
}

static uint64_t le64(const uint8_t *p)
{
    uint64_t x = 0;
    for (int i = 7; i >= 0; i--)
        x = x << 8 | p[i];
    return x;
}

static void keep_of(struct serve *v, struct watch *w)
{
    size_t n = 0;
    uint32_t store = 0;
    while (store < v->s->n_store && strcmp(v->s->store[store].name, w->name))
        store++;
    struct kept *k = malloc((v->s->ready.n + 1) * sizeof *k);
    for (const struct job *j = k ? v->s->ready.first[0] : NULL; j; j = j->skip.next[0])
        if (handle_waits_at(j, (int)store))
            k[n++] = (struct kept){le64(j->handle), le64(j->handle + 8)};
    pthread_mutex_lock(&v->lock);
    free(w->keep);
    w->keep = k;
    w->n_keep = n;
    pthread_mutex_unlock(&v->lock);
}

void stores_keep(struct serve *v)
{
    for (size_t i = 0; i < v->n_watch; i++)
        keep_of(v, &v->watch[i]);
}

/* Under the service's lock. */
static void put_go(struct watch *w, const struct kept *k)
{
    if (w->n_go == w->size_go && w->n_go < GO_MAX) {
        size_t size = w->size_go ? 2 * w->size_go : 64;
        struct kept *p = realloc(w->go, size * sizeof *p);
        w->go = p ? p : w->go;
        w->size_go = p ? size : w->size_go;
    }
    if (w->n_go < w->size_go)
        w->go[w->n_go++] = *k;
}

void stores_let_go(void *arg, const char *store, const uint8_t handle[16])
{
    struct serve *v = arg;
    const struct kept k = {le64(handle), le64(handle + 8)};
    pthread_mutex_lock(&v->lock);
    for (size_t i = 0; i < v->n_watch; i++)
        if (!strcmp(v->watch[i].name, store))
            put_go(&v->watch[i], &k);
    pthread_mutex_unlock(&v->lock);
}

/* One that was taken meanwhile is another's. False: the store does not answer, the rest is told to the next one. */
static bool let_go_all(struct watch *w, struct store_client *c)
{
    struct err e;
    pthread_mutex_lock(&w->v->lock);
    struct kept *k = w->go;
    size_t n = w->n_go, i = 0;
    w->go = NULL;
    w->n_go = w->size_go = 0;
    pthread_mutex_unlock(&w->v->lock);
    while (i < n && (!store_client_release(&e, c, k[i].seq, k[i].gen) || store_client_why(c)))
        i++;
    pthread_mutex_lock(&w->v->lock);
    for (size_t left = i; left < n; left++)
        put_go(w, &k[left]);
    pthread_mutex_unlock(&w->v->lock);
    free(k);
    return i == n;
}

/* One that has ended meanwhile is computed again by whoever is to decode it. */
static void keep_all(struct watch *w, struct store_client *c)
{
    struct err e;
    pthread_mutex_lock(&w->v->lock);
    struct kept *k = w->keep;
    size_t n = w->n_keep;
    w->keep = NULL;
    w->n_keep = 0;
    pthread_mutex_unlock(&w->v->lock);
    for (size_t i = 0; i < n; i++)
        (void)store_client_keep(&e, c, k[i].seq, k[i].gen);
    free(k);
}

/* Until it breaks: a store that comes after is watched from the beginning, so the client does not connect again. */
static void follow(struct watch *w, struct store_client *c)
{
    struct err e = {0};
    struct store_event x;
    uint64_t renewed_ns = proc_now_ns();
    if (store_client_watch(&e, c))
        return;
    while (!stopped(w->v)) {
        keep_all(w, c);
        if (!let_go_all(w, c))
            return;
        int rc = store_client_event(&e, c, &x, WAIT_MS);
        bool due = rc && proc_now_ns() - renewed_ns >= RENEW_NS;
        renewed_ns = due ? proc_now_ns() : renewed_ns;
        if (!rc)
            give(w, &x);
        else if (store_client_why(c) || rc != ERR_NO || (due && store_client_renew(&e, c)))
            return;
    }
}

static void *watch_main(void *arg)
{
    struct watch *w = arg;
    struct serve *v = w->v;
    struct store_client_opts o = {.url = w->url, .name = v->o->prog, .timeout_ms = CALL_MS, .no_thread = true};
    bool said = false;
    while (!stopped(v)) {
        struct err e = {0};
        struct store_client *c;
        if (store_client_open(&e, &c, &o)) {
            if (e.code != ERR_SYS && e.code != ERR_NO && !said) {
                said = true;
                serve_say(v, e.text);
            }
            continue;
        }
        said = false;
        follow(w, c);
        store_client_close(c);
        give(w, &(struct store_event){.reset = true});
    }
    return NULL;
}

int stores_open(struct err *e, struct serve *v)
{
    v->last_news = &v->news;
    for (size_t i = 0; i < v->o->n_store; i++) {
        struct watch *w = &v->watch[i];
        w->v = v;
        strncat(w->name, v->o->store[i].name, sizeof w->name - 1);
        strncat(w->url, v->o->store[i].url, sizeof w->url - 1);
        if (pthread_create(&w->thread, NULL, watch_main, w))
            return err_set(e, ERR_SYS, "no thread for the store %s", w->name);
        v->n_watch++;
    }
    return 0;
}

void stores_close(struct serve *v)
{
    pthread_mutex_lock(&v->lock);
    v->stop = true;
    pthread_cond_broadcast(&v->room);
    pthread_mutex_unlock(&v->lock);
    for (size_t i = 0; i < v->n_watch; i++)
        pthread_join(v->watch[i].thread, NULL);
    for (size_t i = 0; i < v->n_watch; i++)
        free(v->watch[i].keep), free(v->watch[i].go);
    for (struct news *n; (n = stores_take(v));)
        news_free(n);
}
