/* A body that is long is read by a second thread: every connection waits for what the loop does. */
#include "api/aside.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "request/ask.h"

struct aside_job {
    struct aside_job *next;
    struct http_request *r; /* of the loop; NULL: its client has gone */
    bool gone;              /* the same for the thread, under the lock */
    const struct api_route *route;
    struct api_model model; /* as it was when it came: the loop may change its window */
    char *body;
    size_t n;
    struct api_parsed *p;
};

struct aside {
    pthread_t thread;
    bool has_thread, stop;
    pthread_mutex_t lock;
    pthread_cond_t work;
    int fd;
    struct aside_job *first, **last, *done, **last_done;
    size_t bytes; /* of bodies that wait or are read */
    size_t n;     /* jobs, of the loop */
};

struct api_parsed *api_parse(const struct api_route *route, const struct api_model *m, const char *body, size_t n)
{
    struct api_parsed *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->n = n;
    p->rc = ask_parse(&p->e, &p->o, body, n);
    if (!p->rc && route && route->prepare)
        route->prepare(p, m);
    return p;
}

void api_parsed_free(struct api_parsed *p)
{
    if (!p)
        return;
    if (p->free_more)
        p->free_more(p->more);
    json_decref(p->o);
    free(p);
}

static void job_free(struct aside_job *j)
{
    api_parsed_free(j->p);
    free(j->body);
    free(j);
}

static void *run(void *arg)
{
    struct aside *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->first && !s->stop)
            pthread_cond_wait(&s->work, &s->lock);
        struct aside_job *j = s->first;
        if (s->stop)
            break;
        s->first = j->next;
        if (!s->first)
            s->last = &s->first;
        bool gone = j->gone;
        pthread_mutex_unlock(&s->lock);
        if (!gone)
            j->p = api_parse(j->route, &j->model, j->body, j->n);
        free(j->body);
        j->body = NULL;
        pthread_mutex_lock(&s->lock);
        s->bytes -= j->n;
        j->next = NULL;
        *s->last_done = j;
        s->last_done = &j->next;
        uint64_t one = 1;
        (void)!write(s->fd, &one, sizeof one); /* full: it is awake anyway */
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int aside_open(struct err *e, struct aside **out)
{
    struct aside *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return err_nomem(e, "the edge", sizeof *s);
    s->last = &s->first;
    s->last_done = &s->done;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    s->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    sigset_t all, was;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &was); /* signals are the loop's */
    int rc = s->fd < 0 ? err_sys(e, "eventfd") : 0;
    if (!rc && pthread_create(&s->thread, NULL, run, s))
        rc = err_sys(e, "cannot start a thread");
    s->has_thread = !rc;
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    if (rc)
        aside_close(s);
    else
        *out = s;
    return rc;
}

static void free_all(struct aside_job *j)
{
    for (struct aside_job *next; j; j = next) {
        next = j->next;
        job_free(j);
    }
}

void aside_close(struct aside *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    if (s->has_thread)
        pthread_join(s->thread, NULL);
    free_all(s->first);
    free_all(s->done);
    if (s->fd >= 0)
        close(s->fd);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    free(s);
}

int aside_fd(const struct aside *s)
{
    return s->fd;
}

size_t aside_n(const struct aside *s)
{
    return s->n;
}

struct aside_job *aside_put(struct aside *s, struct http_request *r, const struct api_route *route,
                            const struct api_model *m, const char *body, size_t n)
{
    pthread_mutex_lock(&s->lock);
    bool room = !s->bytes || s->bytes + n <= ASIDE_BYTES_MAX;
    pthread_mutex_unlock(&s->lock);
    struct aside_job *j = room ? calloc(1, sizeof *j) : NULL;
    if (j)
        j->body = malloc(n + 1);
    if (!j || !j->body) {
        free(j);
        return NULL;
    }
    memcpy(j->body, body, n);
    j->body[n] = 0;
    j->n = n;
    j->r = r;
    j->route = route;
    j->model = *m;
    s->n++;
    pthread_mutex_lock(&s->lock);
    s->bytes += n;
    *s->last = j;
    s->last = &j->next;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    return j;
}

void aside_forget(struct aside *s, struct aside_job *j)
{
    j->r = NULL;
    pthread_mutex_lock(&s->lock);
    j->gone = true;
    pthread_mutex_unlock(&s->lock);
}

bool aside_take(struct aside *s, struct http_request **r, const struct api_route **route, struct api_parsed **p)
{
    uint64_t count;
    pthread_mutex_lock(&s->lock);
    struct aside_job *j = s->done;
    if (j) {
        s->done = j->next;
        if (!s->done)
            s->last_done = &s->done;
    } else {
        (void)!read(s->fd, &count, sizeof count);
    }
    pthread_mutex_unlock(&s->lock);
    if (!j)
        return false;
    *r = j->r;
    *route = j->route;
    *p = j->p;
    j->p = NULL;
    job_free(j);
    s->n--;
    return true;
}
