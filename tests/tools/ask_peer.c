/*
 * The other side of questions, in a process of its own that a test can kill:
 *
 *   ask_peer echo URL      listens, answers every question with itself
 *   ask_peer hold URL      listens, and answers nothing
 *   ask_peer ask URL N     asks N questions, and waits for answers that it does not look at
 *
 * It says "ready" when it listens or has asked, and ends when its input does.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "link/ask.h"

static int ask(struct err *e, struct link_dialer *d, unsigned long n)
{
    struct link_msg m = {0};
    int rc = 0;
    for (unsigned long i = 0; i < n && !rc; i++) {
        rc = link_msg_add(e, &m, &(struct wire_frame){.kind = WIRE_TICK, .tick = {.at_ns = i}});
        rc = rc ? rc : link_ask(e, d, &m, NULL);
    }
    link_msg_free(&m);
    return rc;
}

static void echo(const struct link_event *v)
{
    struct link_msg m = {.p = malloc(v->n ? v->n : 1), .n = v->n};
    if (m.p && v->n)
        memcpy(m.p, v->p, v->n);
    link_answer(v->q, &m);
    link_msg_free(&m);
}

static void until_input_ends(struct link_box *b, bool answers)
{
    for (;;) {
        struct pollfd p[2] = {{.fd = 0, .events = POLLIN}, {.fd = link_box_fd(b), .events = POLLIN}};
        struct link_event v;
        char c;
        if (poll(p, 2, -1) < 0)
            return;
        while (link_box_take(b, &v))
            if (v.what == LINK_QUESTION && answers)
                echo(&v);
        if (p[0].revents && read(0, &c, 1) <= 0)
            return;
    }
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct link_box *b = NULL;
    struct link_listener *l = NULL;
    struct link_dialer *d = NULL;
    if (argc < 3)
        return ERR_USAGE;
    int rc = link_box_new(&e, &b);
    if (!rc && !strcmp(argv[1], "ask")) {
        rc = link_dial(&e, &d, b, argv[2], NULL);
        rc = rc ? rc : ask(&e, d, argc > 3 ? strtoul(argv[3], NULL, 10) : 1);
    } else if (!rc) {
        rc = link_listen(&e, &l, b, argv[2], NULL);
    }
    if (!rc) {
        puts("ready");
        fflush(stdout);
        until_input_ends(b, !strcmp(argv[1], "echo"));
    } else {
        fprintf(stderr, "ask_peer: %s\n", e.text);
    }
    link_dialer_free(d);
    link_listener_free(l);
    link_box_free(b);
    return rc;
}
