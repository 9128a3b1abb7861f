/* The HTTP server with many connections, and without free descriptors. */
#include "http_client.h"

#include <sys/resource.h>

static const struct http_opts plain = {0};

#define MANY 700

static void descriptors(rlim_t soft)
{
    struct rlimit l;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &l), 0);
    l.rlim_cur = soft < l.rlim_max ? soft : l.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &l), 0);
}

/* Clients disconnect in any state of their response: being written, complete but not sent, awaited. */
static void many_clients_disconnect_at_once(void **state)
{
    static struct client *c[MANY];
    struct server *v = server_new(&plain, "127.0.0.1:0");
    (void)state;
    descriptors(RLIM_INFINITY);
    for (int reset = 0; reset < 2; reset++) {
        size_t first = v->n_tag;
        for (int i = 0; i < MANY; i++) {
            c[i] = client_new(v);
            send_text(v, c[i], GET("/stream"));
        }
        UNTIL(v, v->n_tag == first + MANY);
        run_ms(v, 20);
        for (size_t i = 0; i < MANY; i++) {
            http_write(v->tag[first + i].r, "data: 1\n\n", 9);
            if (i % 20)
                tag_end(&v->tag[first + i]);
        }
        for (int i = 0; i < MANY; i++) {
            client_leave(c[i], reset);
            client_free(c[i]);
        }
        UNTIL(v, http_connections(v->h) == 0);
        for (size_t i = 0; i < MANY; i++)
            assert_int_equal(v->tag[first + i].n_disconnected, i % 20 ? 0 : 1);
    }
    server_free(v);
}

static double cpu_ms(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e3;
}

static size_t n_line;
static char line[400];

static void on_line(void *arg, const char *text)
{
    (void)arg;
    n_line++;
    snprintf(line, sizeof line, "%s", text);
}

/* Without descriptors new clients are refused and do not hang, existing ones work, and the server does not spin. */
static void running_out_of_descriptors_refuses_new_connections(void **state)
{
    struct http_opts o = {.log = on_line};
    struct server *v = server_new(&o, "127.0.0.1:0");
    struct client *here = client_new(v), *later[3], *again;
    struct http_stats stats;
    struct answer a;
    (void)state;
    request_echo(v, here);
    for (int i = 0; i < 3; i++) {
        later[i] = client_new(v);
        assert_true(send(later[i]->fd, GET("/echo"), sizeof GET("/echo") - 1, MSG_NOSIGNAL) > 0);
    }
    again = client_new(v);
    int next = dup(here->fd);
    assert_true(next >= 0);
    close(next);
    descriptors((rlim_t)next);
    double before = cpu_ms();
    run_ms(v, 300);
    double spent = cpu_ms() - before;
    assert_true(spent < 150);
    for (int i = 0; i < 3; i++) {
        answer_read(v, later[i], &a);
        assert_int_equal(a.status, 503);
        assert_non_null(strstr(a.body, "descriptor"));
        answer_free(&a);
        client_until_closed(v, later[i]);
        client_free(later[i]);
    }
    assert_int_equal(n_line, 1); /* one line a minute */
    assert_non_null(strstr(line, "descriptor"));
    http_stats(v->h, &stats);
    assert_int_equal(stats.refused, 4);
    request_echo(v, here);
    /* A connection that is idle for more than a second gives its descriptor to a new one. */
    client_free(again);
    run_ms(v, 1100);
    again = client_new(v);
    next = dup(again->fd);
    assert_true(next >= 0);
    close(next);
    descriptors((rlim_t)next);
    request_echo(v, again);
    client_until_closed(v, here);
    http_stats(v->h, &stats);
    assert_int_equal(stats.replaced, 1);
    descriptors(RLIM_INFINITY);
    client_free(here);
    client_free(again);
    server_free(v);
}

/* A half-closed connection must not make each http_step walk over all connections. */
static void a_half_closed_connection_costs_others_nothing(void **state)
{
    static struct client *c[MANY];
    struct server *v = server_new(&plain, "127.0.0.1:0");
    double ms[2];
    (void)state;
    descriptors(RLIM_INFINITY);
    for (int i = 0; i < MANY; i++) {
        c[i] = client_new(v);
        send_text(v, c[i], GET("/stream"));
    }
    UNTIL(v, v->n_tag == MANY);
    run_ms(v, 100);
    for (int half = 0; half < 2; half++) {
        struct err e = {0};
        ms[half] = 1e9;
        for (int round = 0; round < 5; round++) {
            double before = cpu_ms();
            for (int i = 0; i < 4000; i++)
                OK(http_step(&e, v->h));
            double spent = cpu_ms() - before;
            ms[half] = spent < ms[half] ? spent : ms[half];
        }
        shutdown(c[0]->fd, SHUT_WR);
        run_ms(v, 200);
    }
    print_message("%.1f ms, with a half-closed one %.1f ms\n", ms[0], ms[1]);
    assert_true(ms[1] < 1.5 * ms[0] + 2);
    for (size_t i = 0; i < MANY; i++) {
        tag_end(&v->tag[i]);
        client_free(c[i]);
    }
    server_free(v);
}

/* RFC 9112, 6.1 and 6.3: no chunked coding in HTTP/1.0; the end of the connection ends the body. */
static void an_http_1_0_stream_ends_with_the_connection(void **state)
{
    struct server *v = server_new(&plain, "127.0.0.1:0");
    struct client *c = client_new(v);
    struct answer a;
    (void)state;
    struct tag *t = send_waiting(v, c, "GET /stream HTTP/1.0\r\n\r\n");
    http_write(t->r, "data: 1\n\n", 9);
    run_ms(v, 20);
    http_write(t->r, "data: 2\n\n", 9);
    tag_end(t);
    answer_head(v, c, &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(answer_header(&a, "Transfer-Encoding"), "");
    assert_string_equal(answer_header(&a, "Content-Length"), "");
    client_until_closed(v, c);
    assert_string_equal(c->p, "data: 1\n\ndata: 2\n\n");
    client_free(c);
    server_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_clients_disconnect_at_once),
        cmocka_unit_test(running_out_of_descriptors_refuses_new_connections),
        cmocka_unit_test(a_half_closed_connection_costs_others_nothing),
        cmocka_unit_test(an_http_1_0_stream_ends_with_the_connection),
    };
    alarm(120); /* a hang fails the test too */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
