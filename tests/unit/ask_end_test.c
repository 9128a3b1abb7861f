/*
 * A connection that is closed as soon as its answer is there. nng frees a socket under the threads that are still
 * within a call for it, if they are late; here they are: its calls are replaced by slow ones, which see who closes
 * meanwhile.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>

#include "link/ask.h"

#define ROUNDS 20
#define OK(call)                                                                                                       \
    do {                                                                                                               \
        if (call)                                                                                                      \
            fail_msg("%s: %s", #call, e.text);                                                                         \
    } while (0)

static struct err e;
static atomic_int within, n_recv, n_close, n_too_early;

void nng_ctx_recv(nng_ctx c, nng_aio *a)
{
    void (*real)(nng_ctx, nng_aio *) = (void (*)(nng_ctx, nng_aio *))dlsym(RTLD_NEXT, "nng_ctx_recv");
    within++;
    n_recv++;
    real(c, a);
    usleep(5000);
    within--;
}

int nng_close(nng_socket s)
{
    int (*real)(nng_socket) = (int (*)(nng_socket))dlsym(RTLD_NEXT, "nng_close");
    n_close++;
    n_too_early += within > 0;
    return real(s);
}

/* Without a context of its own: what is within is the asker's. */
static void *echo(void *arg)
{
    nng_socket s = *(nng_socket *)arg;
    nng_msg *m;
    for (int i = 0; i < ROUNDS && !nng_recvmsg(s, &m, 0); i++)
        if (nng_sendmsg(s, m, 0))
            nng_msg_free(m);
    return NULL;
}

static void closed_at_once(void **state)
{
    char url[80];
    nng_socket s;
    pthread_t t;
    (void)state;
    snprintf(url, sizeof url, "ipc:///tmp/ask_end_test.%d", (int)getpid());
    assert_int_equal(nng_rep0_open(&s), 0);
    assert_int_equal(nng_listen(s, url, NULL, 0), 0);
    assert_int_equal(pthread_create(&t, NULL, echo, &s), 0);
    for (int i = 0; i < ROUNDS; i++) {
        struct link_box *b;
        struct link_dialer *d;
        struct link_event v = {0};
        OK(link_box_new(&e, &b));
        OK(link_dial(&e, &d, b, url, NULL));
        OK(link_ask(&e, d, NULL, NULL));
        while (v.what != LINK_ANSWER)
            if (!link_box_take(b, &v))
                link_box_wait(b, 1000);
        link_dialer_free(d);
        link_box_free(b);
    }
    pthread_join(t, NULL);
    assert_int_equal(n_recv, ROUNDS);
    assert_int_equal(n_close, ROUNDS);
    assert_int_equal(n_too_early, 0);
    nng_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
