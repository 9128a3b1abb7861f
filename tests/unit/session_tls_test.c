/* Sessions over tls+tcp:// and who may have one. The certificates are made by openssl(1), so that another
 * implementation than ours states what is right. */
#include "session_pair.h"

#include <netinet/in.h>

static char dir[80];            /* of the certificates */
static struct peer_tls *tls[2]; /* of server and client */

/* Runs a shell command in which $D is the directory. */
static void shell(const char *text)
{
    char line[4096];
    snprintf(line, sizeof line, "D=%s; set -e; { %s; } >$D/log 2>&1 || { cat $D/log >&2; exit 1; }", dir, text);
    if (system(line))
        fail_msg("failed: %s", line);
}

/* An authority NAME.pem with its key. */
#define AUTHORITY(name)                                                                                                \
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $D/" name ".key -out $D/" name       \
    ".pem -days 30 -subj /CN=" name

/* FILE.pem in the directory SUB, signed by CA, with these names. */
static void issue(const char *ca, const char *sub, const char *file, const char *names, const char *more)
{
    char text[2048];
    snprintf(
        text, sizeof text,
        "mkdir -p $D/%s; cp -n $D/ca.pem $D/%s/ca.pem; "
        "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $D/k -out $D/csr -subj /CN=x; "
        "echo subjectAltName=%s > $D/ext; "
        "openssl x509 -req -in $D/csr -CA $D/%s.pem -CAkey $D/%s.key -CAcreateserial -out $D/c -extfile $D/ext %s; "
        "rm -f $D/%s/%s.pem; cat $D/c $D/k > $D/%s/%s.pem; chmod 600 $D/%s/%s.pem",
        sub, sub, names, ca, ca, *more ? more : "-days 30", sub, file, sub, file, sub, file);
    shell(text);
}

static int make_certificates(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/session_tls_test.%d", (int)getpid());
    assert_int_equal(mkdir(dir, 0700), 0);
    shell(AUTHORITY("ca") "; " AUTHORITY("other"));
    issue("ca", "s", "sched", "URI:urn:phasepipe:role:sched", "");
    issue("ca", "w", "worker", "URI:urn:phasepipe:role:worker", "");
    return 0;
}

static int remove_certificates(void **state)
{
    char line[120];
    (void)state;
    snprintf(line, sizeof line, "rm -rf %s", dir);
    return system(line);
}

static struct peer_tls *credentials(const char *sub, const char *role)
{
    char path[120];
    struct peer_tls *t;
    snprintf(path, sizeof path, "%s/%s", dir, sub);
    OK(peer_tls_open(&e, &t, path, role));
    return t;
}

static struct session_hub *secure_hub(const char *role, const char *name, struct peer_tls *t)
{
    struct session_hub *h;
    OK(session_hub_new(&e, &h, &(struct session_hub_opts){.self = {role, name, 77}, .security = {.tls = t}}));
    return h;
}

static int setup_tls(void **state)
{
    (void)state;
    snprintf(url, sizeof url, "tls+tcp://127.0.0.1:0");
    arena = wire_arena_new();
    tls[0] = credentials("s", "sched");
    tls[1] = credentials("w", "worker");
    server = secure_hub("sched", "s", tls[0]);
    client = secure_hub("worker", "w", tls[1]);
    return 0;
}

static int teardown_tls(void **state)
{
    teardown(state);
    peer_tls_close(tls[0]);
    peer_tls_close(tls[1]);
    return 0;
}

/* Replaces the client by one with other credentials, of which `role` is the file. It takes them over. */
static void other_client(const char *role, const char *name, const char *sub, const char *file)
{
    session_hub_free(client);
    peer_tls_close(tls[1]);
    tls[1] = credentials(sub, file);
    client = secure_hub(role, name, tls[1]);
}

static void other_server(const char *role, const char *sub, const char *file)
{
    session_hub_free(server);
    peer_tls_close(tls[0]);
    tls[0] = credentials(sub, file);
    server = secure_hub(role, "s", tls[0]);
}

static char refusal[sizeof e.text];
static bool refused_or_up(const struct session_event *v)
{
    n_up += v->type == SESSION_UP;
    if (v->type == SESSION_REFUSED || v->type == SESSION_DOWN)
        snprintf(refusal, sizeof refusal, "%s", v->err.text);
    return v->type == SESSION_REFUSED || v->type == SESSION_DOWN;
}

/* The client dials and is refused; nobody gets a frame. */
static void is_refused(const char *roles, const char *reason)
{
    n_up = 0;
    if (!l)
        OK(session_listen(&e, &l, server, url, roles, &l));
    OK(session_dial(&e, &d, client, session_listener_url(l), "sched", &d));
    assert_true(run(refused_or_up, 5000));
    assert_int_equal(n_up, 0);
    if (!strstr(refusal, reason))
        fail_msg("\"%s\" does not contain \"%s\"", refusal, reason);
    session_free(d);
    d = NULL;
}

/* ---- data ---- */

static void frames_arrive_in_both_directions_in_order(void **state)
{
    struct session_event v;
    (void)state;
    connect_both();
    assert_string_equal(session_peer_role(accepted), "worker");
    assert_string_equal(session_peer_name(accepted), "w");
    for (uint64_t i = 0; i < 1000; i++) {
        send_tick(d, i);
        send_tick(accepted, 7 * i);
    }
    for (uint64_t i = 0; i < 1000; i++) {
        assert_true(next_of(&v, server, SESSION_FRAME, (int)slow(5000)));
        assert_int_equal(tick_of(&v), i);
        assert_true(next_of(&v, client, SESSION_FRAME, (int)slow(5000)));
        assert_int_equal(tick_of(&v), 7 * i);
    }
}

static uint64_t big_sum, big_n;
static bool on_big(const struct session_event *v)
{
    if (v->type != SESSION_FRAME)
        return false;
    for (size_t i = 0; i < v->n; i += 4093)
        big_sum += v->p[i];
    return ++big_n == 4;
}

static void frames_of_many_records_arrive_whole(void **state)
{
    enum { N = 3 << 20 };
    (void)state;
    uint8_t *bytes = test_malloc(N);
    uint8_t *p = NULL;
    size_t n = 0, cap = 0;
    uint64_t sum = 0;
    for (size_t i = 0; i < N; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    connect_both();
    const struct wire_frame f = {.kind = WIRE_PROMPT,
                                 .prompt = {.seq = 1, .n = 1, .id = wire_str_of("x"), .body = {bytes, N}}};
    OK(wire_encode_add(&e, &p, &n, &cap, &f));
    for (size_t i = 0; i < n; i += 4093)
        sum += p[i];
    for (int i = 0; i < 2; i++) {
        OK(session_send_bytes(&e, d, p, n));
        OK(session_send_bytes(&e, accepted, p, n));
    }
    big_sum = big_n = 0;
    assert_true(run(on_big, (int)slow(20000)));
    assert_int_equal(big_sum, 4 * sum);
    free(p);
    test_free(bytes);
}

/* ---- peers that are refused ---- */

static void a_certificate_of_another_authority_is_refused(void **state)
{
    (void)state;
    issue("other", "stranger", "worker", "URI:urn:phasepipe:role:worker", "");
    other_client("worker", "w", "stranger", "worker");
    is_refused("worker", "the peer has refused this side: ");
}

static void a_server_of_another_authority_is_refused(void **state)
{
    (void)state;
    issue("other", "impostor", "sched", "URI:urn:phasepipe:role:sched", "");
    other_server("sched", "impostor", "sched");
    is_refused("worker", "the certificate of the peer is refused: ");
}

static void the_role_is_bound_to_the_certificate(void **state)
{
    (void)state;
    other_client("tool", "", "w", "worker"); /* a worker's credentials, but it calls itself a tool */
    is_refused("worker tool", "role tool is not accepted here, only: worker");
}

static void a_certificate_for_other_roles_is_refused(void **state)
{
    (void)state;
    issue("ca", "t", "tool", "URI:urn:phasepipe:role:tool", "");
    other_client("worker", "w", "t", "tool");
    is_refused("worker gateway", "the certificate of the peer permits the roles 'tool', needed here: worker gateway");
}

static void a_certificate_without_a_role_is_refused(void **state)
{
    (void)state;
    issue("ca", "t", "none", "DNS:localhost", "");
    char path[120];
    struct peer_tls *t;
    snprintf(path, sizeof path, "%s/t", dir);
    assert_int_equal(peer_tls_open(&e, &t, path, "none"), ERR_NO);
    assert_non_null(strstr(e.text, "the certificate states no role"));
}

static void a_worker_cannot_pose_as_the_scheduler(void **state)
{
    (void)state;
    other_server("sched", "w", "worker");
    is_refused("worker", "the certificate of the peer permits the roles 'worker', needed here: sched");
}

static void names_are_bound_if_the_certificate_has_any(void **state)
{
    (void)state;
    issue("ca", "named", "worker", "URI:urn:phasepipe:role:worker,URI:urn:phasepipe:name:w7,URI:urn:phasepipe:name:w8",
          "");
    other_client("worker", "w9", "named", "worker");
    is_refused("worker", "name w9 is not accepted, the certificate permits only: w7 w8");
    other_client("worker", "w8", "named", "worker");
    connect_both();
    assert_string_equal(session_peer_name(accepted), "w8");
}

/* Whether the server answers the certificate of openssl's client with this alert. */
static bool is_alerted(const char *sub, const char *alert)
{
    char line[400], got[16384] = "";
    size_t n = 0;
    snprintf(line, sizeof line,
             "timeout 10 openssl s_client -connect %s -cert %s/%s/worker.pem -ign_eof </dev/null 2>&1",
             session_listener_url(l) + strlen("tls+tcp://"), dir, sub);
    FILE *out = popen(line, "r");
    assert_non_null(out);
    assert_int_equal(fcntl(fileno(out), F_SETFL, O_NONBLOCK), 0);
    for (ssize_t k = -1; k && n<sizeof got - 1; n += k> 0 ? (size_t)k : 0) {
        run(never, 20);
        k = read(fileno(out), got + n, sizeof got - 1 - n);
    }
    pclose(out);
    assert_non_null(strstr(got, "TLSv1.3"));
    return strstr(got, alert) != NULL;
}

static void an_expired_certificate_is_refused_by_both_sides(void **state)
{
    char path[120];
    struct peer_tls *t;
    (void)state;
    issue("ca", "old", "worker", "URI:urn:phasepipe:role:worker", "-days -1");
    snprintf(path, sizeof path, "%s/old", dir);
    assert_int_equal(peer_tls_open(&e, &t, path, "worker"), ERR_NO);
    assert_non_null(strstr(e.text, "old/worker.pem: the certificate has expired"));
    OK(session_listen(&e, &l, server, url, "worker", &l));
    assert_true(is_alerted("old", "alert bad certificate"));
    assert_false(is_alerted("w", " alert "));
}

static void a_revoked_certificate_is_refused(void **state)
{
    (void)state;
    issue("ca", "lost", "worker", "URI:urn:phasepipe:role:worker", "");
    shell(
        "mkdir -p $D/s2 $D/db; cp $D/s/*.pem $D/s2; touch $D/db/index; echo 01 > $D/db/crl; "
        "printf '[ca]\\ndefault_ca=d\\n[d]\\ndatabase=%s\\ncrlnumber=%s\\ndefault_md=sha256\\ndefault_crl_days=30\\n' "
        "$D/db/index $D/db/crl > $D/db/conf; "
        "openssl ca -config $D/db/conf -cert $D/ca.pem -keyfile $D/ca.key -revoke $D/lost/worker.pem; "
        "openssl ca -config $D/db/conf -cert $D/ca.pem -keyfile $D/ca.key -gencrl -out $D/s2/crl.pem");
    other_server("sched", "s2", "sched");
    other_client("worker", "w", "lost", "worker");
    is_refused("worker", "the peer has refused this side: ");
    other_client("worker", "w", "w", "worker");
    connect_both();
}

/* ---- peers without TLS ---- */

static void a_peer_without_tls_is_refused(void **state)
{
    char plain[80];
    (void)state;
    OK(session_listen(&e, &l, server, url, "worker", &l));
    snprintf(plain, sizeof plain, "%s", session_listener_url(l) + 4);
    OK(session_dial(&e, &d, client, plain, "sched", &d));
    n_up = 0;
    run(refused_or_up, (int)slow(500));
    assert_int_equal(n_up, 0);
    session_free(d);
    connect_both(); /* it disturbs nobody else */
}

static void a_server_without_tls_is_refused(void **state)
{
    char secure[80];
    (void)state;
    OK(session_listen(&e, &l, server, "tcp://127.0.0.1:0", "worker", &l));
    snprintf(secure, sizeof secure, "tls+%s", session_listener_url(l));
    OK(session_dial(&e, &d, client, secure, "sched", &d));
    n_up = 0;
    assert_true(run(refused_or_up, 5000));
    assert_int_equal(n_up, 0);
    assert_non_null(strstr(refusal, "the peer does not speak TLS"));
}

static int connect_tcp(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    a.sin_port = htons((uint16_t)atol(strrchr(session_listener_url(l), ':') + 1));
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(s, (struct sockaddr *)&a, sizeof a), 0);
    return s;
}

/* Whether the server closes a connection within ms. */
static bool closes(int s, int ms)
{
    char got[4096];
    int64_t end = now_ms() + ms;
    while (now_ms() < end) {
        run(never, 20);
        ssize_t k = recv(s, got, sizeof got, MSG_DONTWAIT);
        if (!k || (k < 0 && errno != EAGAIN))
            return true;
    }
    return false;
}

static void bytes_that_are_not_tls_end_their_connection_only(void **state)
{
    uint32_t x = 1;
    (void)state;
    OK(session_listen(&e, &l, server, url, "worker", &l));
    for (int i = 0; i < 10; i++) {
        uint8_t bytes[700];
        for (size_t k = 0; k < sizeof bytes; k++)
            bytes[k] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
        if (i % 2) /* the head of a handshake record, then noise */
            memcpy(bytes, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
        int s = connect_tcp();
        assert_int_equal(send(s, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
        assert_true(closes(s, (int)slow(4000)));
        close(s);
    }
    connect_both();
}

static void a_handshake_that_stalls_ends_after_the_hello_timeout(void **state)
{
    (void)state;
    OK(session_listen(&e, &l, server, url, "worker", &l));
    int s = connect_tcp();
    int64_t start = now_ms();
    assert_true(closes(s, (int)slow(SESSION_HELLO_MS + 2000)));
    assert_true(now_ms() - start >= SESSION_HELLO_MS - 100);
    close(s);
}

/* ---- settings ---- */

static void addresses_need_credentials_or_permission(void **state)
{
    struct session_listener *x;
    struct session *s;
    struct session_hub *h = hub("sched", "s", 0, 0), *open = NULL;
    (void)state;
    assert_int_equal(session_listen(&e, &x, h, "tls+tcp://127.0.0.1:0", "worker", NULL), ERR_USAGE);
    assert_non_null(strstr(e.text, "--peer-tls DIR"));
    assert_int_equal(session_listen(&e, &x, h, "tcp://0.0.0.0:0", "worker", NULL), ERR_USAGE);
    assert_non_null(strstr(e.text, "neither encrypted nor authenticated"));
    assert_int_equal(session_dial(&e, &s, h, "tcp://192.0.2.1:7000", "sched", NULL), ERR_USAGE);
    assert_int_equal(session_dial(&e, &s, h, "tcp://127.0.0.1.example:7000", "sched", NULL), ERR_USAGE);
    OK(session_listen(&e, &x, h, "tcp://localhost:0", "worker", NULL));
    OK(session_hub_new(&e, &open,
                       &(struct session_hub_opts){.self = {"sched", "s", 1}, .security = {.plaintext = true}}));
    OK(session_listen(&e, &x, open, "tcp://0.0.0.0:0", "worker", NULL));
    session_hub_free(open);
    session_hub_free(h);
}

static void opens_as(const char *sub, const char *role, const char *reason)
{
    char path[120];
    struct peer_tls *t;
    snprintf(path, sizeof path, "%s/%s", dir, sub);
    assert_int_equal(peer_tls_open(&e, &t, path, role), ERR_NO);
    if (!strstr(e.text, reason))
        fail_msg("\"%s\" does not contain \"%s\"", e.text, reason);
}

static void bad_files_are_refused_by_name(void **state)
{
    (void)state;
    opens_as("absent", "sched", "absent/ca.pem: No such file");
    opens_as("s", "worker", "s/worker.pem: No such file");
    shell("mkdir -p $D/bad; cp $D/ca.pem $D/bad; cp $D/s/sched.pem $D/bad/worker.pem; chmod 600 $D/bad/worker.pem");
    opens_as("bad", "worker", "bad/worker.pem: the certificate is for the roles 'sched', not for 'worker'");
    shell("cp $D/w/worker.pem $D/bad; chmod 640 $D/bad/worker.pem");
    opens_as("bad", "worker", "bad/worker.pem: other users can read or change this private key (mode 0640): chmod 600");
    shell("chmod 600 $D/bad/worker.pem; chmod 666 $D/bad/ca.pem");
    opens_as("bad", "worker", "bad/ca.pem: other users can change this list of authorities (mode 0666): chmod go-w");
    shell("chmod 644 $D/bad/ca.pem; openssl x509 -in $D/w/worker.pem > $D/bad/worker.pem");
    opens_as("bad", "worker", "bad/worker.pem: no private key");
    shell("cat $D/ca.key >> $D/bad/worker.pem");
    opens_as("bad", "worker", "bad/worker.pem: no private key that matches");
    shell("echo hello > $D/bad/worker.pem");
    opens_as("bad", "worker", "bad/worker.pem: no PEM certificate");
    shell("echo hello > $D/bad/ca.pem");
    opens_as("bad", "worker", "bad/ca.pem: no PEM certificates");
    shell("rm $D/bad/ca.pem; mkfifo $D/bad/ca.pem");
    opens_as("bad", "worker", "bad/ca.pem: expected a regular file");
}

#define WITH_TLS(f) cmocka_unit_test_setup_teardown(f, setup_tls, teardown_tls)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_TLS(frames_arrive_in_both_directions_in_order),
        WITH_TLS(frames_of_many_records_arrive_whole),
        WITH_TLS(a_certificate_of_another_authority_is_refused),
        WITH_TLS(a_server_of_another_authority_is_refused),
        WITH_TLS(the_role_is_bound_to_the_certificate),
        WITH_TLS(a_certificate_for_other_roles_is_refused),
        WITH_TLS(a_certificate_without_a_role_is_refused),
        WITH_TLS(a_worker_cannot_pose_as_the_scheduler),
        WITH_TLS(names_are_bound_if_the_certificate_has_any),
        WITH_TLS(an_expired_certificate_is_refused_by_both_sides),
        WITH_TLS(a_revoked_certificate_is_refused),
        WITH_TLS(a_peer_without_tls_is_refused),
        WITH_TLS(a_server_without_tls_is_refused),
        WITH_TLS(bytes_that_are_not_tls_end_their_connection_only),
        WITH_TLS(a_handshake_that_stalls_ends_after_the_hello_timeout),
        WITH_TLS(addresses_need_credentials_or_permission),
        WITH_TLS(bad_files_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, make_certificates, remove_certificates);
}
