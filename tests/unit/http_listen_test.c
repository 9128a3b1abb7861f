/* Listening addresses, shutdown and TLS of the HTTP server. GnuTLS is the client and makes the certificates. */
#include "http_client.h"

#include "http/listen.h"

#include <fcntl.h>
#include <gnutls/x509.h>
#include <malloc.h>
#include <sys/stat.h>

static const struct http_opts plain = {0};
static char dir[60], cert_path[80], key_path[80], sock_path[80], sock_url[128];

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/http_listen_test.XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(cert_path, sizeof cert_path, "%s/cert.pem", dir);
    snprintf(key_path, sizeof key_path, "%s/key.pem", dir);
    snprintf(sock_path, sizeof sock_path, "%s/sock", dir);
    snprintf(sock_url, sizeof sock_url, "unix:%s", sock_path);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(cert_path);
    unlink(key_path);
    unlink(sock_path);
    return rmdir(dir); /* fails if a file is left */
}

/* ---- addresses ---- */

static void an_invalid_address_is_refused(void **state)
{
    static const char *const no[] = {"",      "host",  "host:",   "127.0.0.1:http",       "70000", "127.0.0.1:65536",
                                     "[::1]", "[]:80", "::1",     "127.0.0.1:-1",         "1 2",   "127.0.0.1:80 ",
                                     "unix:", "80x",   "[::1]:x", "not.a.host.invalid:80"};
    struct server *v = server_new(&plain, "127.0.0.1:0");
    char longer[300] = "unix:/tmp/";
    (void)state;
    memset(longer + 10, 'p', 200);
    for (size_t i = 0; i <= sizeof no / sizeof *no; i++) {
        struct err e = {0};
        const char *a = i < sizeof no / sizeof *no ? no[i] : longer;
        if (http_listen(&e, v->h, a, 0) != ERR_USAGE)
            fail_msg("'%s': %d %s", a, e.code, e.text);
        assert_true(strlen(e.text) > 0);
    }
    assert_null(http_address(v->h, 1));
    server_free(v);
}

static void an_address_in_use_is_reported_by_name(void **state)
{
    struct server *v = server_new(&plain, "0"), *w = server_new(&plain, "0");
    struct err e = {0};
    (void)state;
    assert_int_equal(strncmp(http_address(v->h, 0), "127.0.0.1:", 10), 0);
    assert_int_equal(http_listen(&e, w->h, http_address(v->h, 0), 0), ERR_NO);
    assert_non_null(strstr(e.text, http_address(v->h, 0)));
    /* The server still works, and more addresses can be added. */
    OK(http_listen(&e, w->h, "localhost:0", 3));
    OK(http_listen(&e, w->h, ":0", 4));
    assert_non_null(http_address(w->h, 2));
    int fd = dial_fd(http_address(w->h, 2));
    struct client c = {.fd = fd};
    request_echo(w, &c);
    assert_int_equal(last(w)->dialect, 4);
    assert_string_equal(last(w)->peer, "127.0.0.1"); /* also through a dual-stack IPv6 socket */
    close(fd);
    free(c.p);
    server_free(v);
    server_free(w);
}

static void at_most_sixteen_addresses(void **state)
{
    struct server *v = server_new(&plain, "0");
    struct err e = {0};
    (void)state;
    for (int i = 1; i < 16; i++)
        OK(http_listen(&e, v->h, "0", i));
    assert_int_equal(http_listen(&e, v->h, "0", 0), ERR_USAGE);
    assert_null(http_address(v->h, 16));
    server_free(v);
}

static void a_stale_unix_socket_is_replaced(void **state)
{
    struct err e = {0};
    struct stat st;
    (void)state;
    struct server *v = server_new(&plain, sock_url), *w = server_new(&plain, "0");
    assert_string_equal(http_address(v->h, 0), sock_url);
    assert_int_equal(stat(sock_path, &st), 0);
    assert_int_equal(st.st_mode & 0077, 0);
    struct client *c = client_new(v);
    request_echo(v, c);
    assert_string_equal(last(v)->peer, "unix");
    assert_int_equal(http_listen(&e, w->h, sock_url, 0), ERR_NO); /* in use */
    assert_non_null(strstr(e.text, sock_path));
    request_echo(v, c);
    client_free(c);
    server_free(v);
    assert_int_equal(access(sock_path, F_OK), -1);
    /* The socket file of a killed process. */
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", sock_path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    close(fd);
    OK(http_listen(&e, w->h, sock_url, 0));
    fd = dial_fd(sock_url);
    struct client by = {.fd = fd};
    request_echo(w, &by);
    close(fd);
    free(by.p);
    server_free(w);
    /* Another file is not replaced. */
    fd = open(sock_path, O_CREAT | O_WRONLY, 0600);
    close(fd);
    w = server_new(&plain, "0");
    assert_int_equal(http_listen(&e, w->h, sock_url, 0), ERR_NO);
    server_free(w);
    assert_int_equal(access(sock_path, F_OK), 0);
}

/* As a service manager passes it: bound, listening, blocking. */
static void an_inherited_socket_is_adopted(void **state)
{
    struct server *v = server_new(&plain, "0");
    struct err e = {0};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        struct sockaddr_un un = {.sun_family = AF_UNIX, .sun_path = "\0http_listen_test"};
        int fd = socket(i ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
        assert_int_equal(
            i ? bind(fd, (struct sockaddr *)&un, sizeof(sa_family_t)) : bind(fd, (struct sockaddr *)&in, sizeof in), 0);
        assert_int_equal(listen(fd, 8), 0);
        OK(http_adopt(&e, v->h, fd, 20 + i));
    }
    int fd = dial_fd(http_address(v->h, 1));
    struct client c = {.fd = fd};
    request_echo(v, &c);
    assert_int_equal(last(v)->dialect, 20);
    close(fd);
    free(c.p);
    server_free(v);
}

/* ---- shutdown ---- */

/* A socket that a supervisor bound has a name, queues clients while there is no server, and serves the next server. */
static void a_socket_outlives_its_server(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct err e = {0};
        struct http_socket s, again;
        OK(http_bind(&e, &s, i ? sock_url : "127.0.0.1:0"));
        assert_string_equal(s.path, i ? sock_path : "");
        assert_int_equal(http_bind(&e, &again, s.name), ERR_NO);
        assert_int_equal(again.fd, -1);
        for (int life = 0; life < 2; life++) {
            struct client c = {.fd = dial_fd(s.name)}; /* before the server starts */
            struct server *v = server_new(&plain, "0");
            OK(http_adopt(&e, v->h, dup(s.fd), 7));
            assert_string_equal(http_address(v->h, 1), s.name);
            assert_int_equal(http_address_dialect(v->h, 1), 7);
            request_echo(v, &c);
            assert_int_equal(last(v)->dialect, 7);
            close(c.fd);
            free(c.p);
            server_free(v);
        }
        close(s.fd);
        unlink(s.path);
    }
}

static void stopping_completes_requests_in_flight(void **state)
{
    struct server *v = server_new(&plain, "127.0.0.1:0");
    struct client *idle = client_new(v), *wait = client_new(v), *stream = client_new(v), *body = client_new(v);
    struct answer a;
    char address[160];
    (void)state;
    request_echo(v, idle);
    struct tag *waits = send_waiting(v, wait, GET("/wait") GET("/echo"));
    struct tag *streams = send_waiting(v, stream, GET("/stream"));
    answer_head(v, stream, &a);
    send_text(v, body, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\nhalf");
    run_ms(v, 50);
    snprintf(address, sizeof address, "%s", http_address(v->h, 0));
    http_stop(v->h);
    http_stop(v->h); /* idempotent */
    assert_int_equal(dial_fd(address), -1);
    client_until_closed(v, idle);
    send_text(v, body, "half");
    answer_read(v, body, &a);
    assert_string_equal(a.body, "halfhalf");
    assert_string_equal(answer_header(&a, "Connection"), "close");
    answer_free(&a);
    client_until_closed(v, body);
    assert_false(waits->n_disconnected || streams->n_disconnected);
    tag_reply(waits, 200, "text/plain", "done", 4);
    answer_read(v, wait, &a);
    assert_string_equal(a.body, "done");
    assert_string_equal(answer_header(&a, "Connection"), "close");
    answer_free(&a);
    client_until_closed(v, wait);
    http_write(streams->r, "data: 1\n\n", 9);
    tag_end(streams);
    memset(&a, 0, sizeof a);
    while (answer_chunk(v, stream, &a)) {
    }
    assert_string_equal(a.body, "data: 1\n\n");
    answer_free(&a);
    client_until_closed(v, stream); /* although its headers allowed a next request */
    assert_int_equal(v->n_tag, 4);  /* the pipelined request after /wait is not read */
    UNTIL(v, http_connections(v->h) == 0);
    client_free(idle);
    client_free(wait);
    client_free(stream);
    client_free(body);
    server_free(v);
}

/* ---- TLS ---- */

#define GNUTLS(call) assert_true((call) >= 0)

static void write_file(const char *path, const gnutls_datum_t *d)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(d->data, 1, d->size, f), d->size);
    fclose(f);
}

/* Makes a self-signed certificate with this serial number. */
static void certificate(unsigned char serial, gnutls_pk_algorithm_t kind, bool write_cert, bool write_key)
{
    gnutls_x509_crt_t crt;
    gnutls_x509_privkey_t key;
    gnutls_datum_t pem;
    GNUTLS(gnutls_x509_crt_init(&crt));
    GNUTLS(gnutls_x509_privkey_init(&key));
    GNUTLS(gnutls_x509_privkey_generate(
        key, kind, kind == GNUTLS_PK_RSA ? 2048 : GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0));
    GNUTLS(gnutls_x509_crt_set_version(crt, 3));
    GNUTLS(gnutls_x509_crt_set_serial(crt, &serial, 1));
    GNUTLS(gnutls_x509_crt_set_activation_time(crt, time(NULL) - 3600));
    GNUTLS(gnutls_x509_crt_set_expiration_time(crt, time(NULL) + 3600));
    GNUTLS(gnutls_x509_crt_set_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, "localhost", 9));
    GNUTLS(gnutls_x509_crt_set_key(crt, key));
    GNUTLS(gnutls_x509_crt_sign2(crt, crt, key, GNUTLS_DIG_SHA256, 0));
    GNUTLS(gnutls_x509_crt_export2(crt, GNUTLS_X509_FMT_PEM, &pem));
    if (write_cert)
        write_file(cert_path, &pem);
    gnutls_free(pem.data);
    GNUTLS(gnutls_x509_privkey_export2(key, GNUTLS_X509_FMT_PEM, &pem));
    if (write_key)
        write_file(key_path, &pem);
    (void)chmod(key_path, 0600);
    gnutls_free(pem.data);
    gnutls_x509_crt_deinit(crt);
    gnutls_x509_privkey_deinit(key);
}

static gnutls_certificate_credentials_t credentials;

static struct client *tls_client(struct server *v)
{
    struct client *c = client_new(v);
    uint64_t end = time_now_ns() + WAIT_MS * MS;
    int rc;
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    if (!credentials)
        GNUTLS(gnutls_certificate_allocate_credentials(&credentials));
    GNUTLS(gnutls_init(&c->tls, GNUTLS_CLIENT | GNUTLS_NONBLOCK));
    GNUTLS(gnutls_set_default_priority(c->tls));
    GNUTLS(gnutls_credentials_set(c->tls, GNUTLS_CRD_CERTIFICATE, credentials));
    gnutls_transport_set_int(c->tls, c->fd);
    while ((rc = gnutls_handshake(c->tls)) < 0 && !gnutls_error_is_fatal(rc) && time_now_ns() < end)
        pump(v, c->fd, time_now_ns() + MS);
    if (rc < 0)
        fail_msg("TLS: %s", gnutls_strerror(rc));
    return c;
}

static int serial_of(const struct client *c)
{
    unsigned n = 0;
    const gnutls_datum_t *d = gnutls_certificate_get_peers(c->tls, &n);
    gnutls_x509_crt_t crt;
    unsigned char serial[32] = {0};
    size_t n_serial = sizeof serial;
    assert_int_equal(n, 1);
    GNUTLS(gnutls_x509_crt_init(&crt));
    GNUTLS(gnutls_x509_crt_import(crt, d, GNUTLS_X509_FMT_DER));
    GNUTLS(gnutls_x509_crt_get_serial(crt, serial, &n_serial));
    gnutls_x509_crt_deinit(crt);
    return serial[n_serial - 1];
}

static struct server *tls_server(void)
{
    struct http_opts o = {.tls_cert = cert_path, .tls_key = key_path, .connections_max = 100};
    return server_new(&o, "127.0.0.1:0");
}

static void requests_and_streams_work_over_tls(void **state)
{
    static const gnutls_pk_algorithm_t kinds[] = {GNUTLS_PK_ECDSA, GNUTLS_PK_RSA};
    (void)state;
    for (unsigned char i = 0; i < 2; i++) {
        certificate((unsigned char)(10 + i), kinds[i], true, true);
        struct server *v = tls_server();
        struct client *c = tls_client(v);
        struct answer a;
        assert_int_equal(serial_of(c), 10 + i);
        request(v, c, &a, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nfirst", 200);
        assert_string_equal(a.body, "first");
        answer_free(&a);
        struct tag *t = send_waiting(v, c, GET("/stream"));
        static char piece[100000];
        memset(piece, 'x', sizeof piece);
        for (int j = 0; j < 20; j++)
            http_write(t->r, piece, sizeof piece);
        tag_end(t);
        answer_read(v, c, &a);
        assert_int_equal(a.n_body, 20 * sizeof piece);
        answer_free(&a);
        request_echo(v, c);
        client_free(c);
        server_free(v);
    }
}

/* RFC 9112, 6.1 and 6.3: one error response, and later bytes are not parsed as a request. */
static void a_malformed_request_over_tls_ends_the_connection(void **state)
{
    static const char *const text[] = {
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n" GET("/echo"),
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" GET(
            "/echo")};
    (void)state;
    certificate(1, GNUTLS_PK_ECDSA, true, true);
    struct server *v = tls_server();
    for (size_t i = 0; i < 2; i++) {
        struct client *c = tls_client(v);
        struct answer a;
        request_echo(v, c);
        request(v, c, &a, text[i], 400);
        assert_non_null(strstr(a.body, "Content-Length"));
        assert_string_equal(answer_header(&a, "Connection"), "close");
        assert_int_equal(last(v)->n_fail, 1);
        answer_free(&a);
        client_until_closed(v, c);
        assert_false(c->reset);
        assert_int_equal(c->n, 0);
        assert_int_equal(v->n_tag, 2 * i + 2);
        client_free(c);
    }
    UNTIL(v, http_connections(v->h) == 0);
    server_free(v);
}

static void a_disconnect_over_tls_is_detected(void **state)
{
    static const char *const text[] = {GET("/wait"), GET("/stream")};
    (void)state;
    certificate(1, GNUTLS_PK_ECDSA, true, true);
    struct server *v = tls_server();
    for (int how = 0; how < 4; how++) {
        uint64_t best = UINT64_MAX;
        for (int i = 0; i < 3; i++) {
            struct client *c = tls_client(v);
            struct tag *t = send_waiting(v, c, text[how / 2]);
            run_ms(v, 20);
            uint64_t left = time_now_ns();
            client_leave(c, how % 2);
            UNTIL(v, t->n_finished);
            best = t->disconnected_ns - left < best ? t->disconnected_ns - left : best;
            client_free(c);
        }
        assert_in_range(best, 0, 100 * MS);
    }
    UNTIL(v, http_connections(v->h) == 0);
    server_free(v);
}

static void a_connection_without_tls_is_closed(void **state)
{
    (void)state;
    certificate(1, GNUTLS_PK_ECDSA, true, true);
    struct server *v = tls_server();
    static const char *const text[] = {GET("/echo"), "", "\x16\x03\x01", "\x16\x03\x01\xff\xff\x01junkjunkjunkjunk"};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        struct client *c = client_new(v);
        client_send(v, c, text[i], strlen(text[i]));
        run_ms(v, 20);
        client_leave(c, i % 2);
        UNTIL(v, http_connections(v->h) == 0);
        client_free(c);
    }
    assert_int_equal(v->n_tag, 0);
    struct client *c = tls_client(v);
    request_echo(v, c);
    client_free(c);
    server_free(v);
}

static void certificates_are_reloaded(void **state)
{
    struct err e = {0};
    (void)state;
    certificate(1, GNUTLS_PK_ECDSA, true, true);
    struct server *v = tls_server();
    struct client *old = tls_client(v), *c;
    certificate(2, GNUTLS_PK_RSA, true, true);
    c = tls_client(v);
    assert_int_equal(serial_of(c), 1); /* not before http_reload */
    client_free(c);
    OK(http_reload(&e, v->h));
    c = tls_client(v);
    assert_int_equal(serial_of(c), 2);
    client_free(c);
    request_echo(v, old);
    certificate(3, GNUTLS_PK_ECDSA, true, false); /* the key no longer matches */
    assert_int_equal(http_reload(&e, v->h), ERR_NO);
    assert_non_null(strstr(e.text, key_path));
    unlink(cert_path);
    assert_int_equal(http_reload(&e, v->h), ERR_NO);
    assert_non_null(strstr(e.text, cert_path));
    write_file(cert_path, &(gnutls_datum_t){(unsigned char *)(uintptr_t) "no PEM", 6});
    assert_int_equal(http_reload(&e, v->h), ERR_NO);
    c = tls_client(v);
    assert_int_equal(serial_of(c), 2);
    request_echo(v, c);
    request_echo(v, old);
    client_free(c);
    client_free(old);
    server_free(v);
}

/* RFC 8996 forbids TLS 1.0 and 1.1. */
static void old_versions_of_tls_are_refused(void **state)
{
    static const struct {
        const char *priority;
        bool ok;
    } versions[] = {{"NORMAL:-VERS-ALL:+VERS-TLS1.0:%COMPAT", false},
                    {"NORMAL:-VERS-ALL:+VERS-TLS1.1", false},
                    {"NORMAL:-VERS-ALL:+VERS-TLS1.2", true},
                    {"NORMAL:-VERS-ALL:+VERS-TLS1.3", true}};
    (void)state;
    certificate(1, GNUTLS_PK_ECDSA, true, true);
    struct server *v = tls_server();
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        struct client *c = client_new(v);
        uint64_t end = time_now_ns() + WAIT_MS * MS;
        int rc;
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        GNUTLS(gnutls_init(&c->tls, GNUTLS_CLIENT | GNUTLS_NONBLOCK));
        GNUTLS(gnutls_priority_set_direct(c->tls, versions[i].priority, NULL));
        GNUTLS(gnutls_credentials_set(c->tls, GNUTLS_CRD_CERTIFICATE, credentials));
        gnutls_transport_set_int(c->tls, c->fd);
        while ((rc = gnutls_handshake(c->tls)) < 0 && !gnutls_error_is_fatal(rc) && time_now_ns() < end)
            pump(v, c->fd, time_now_ns() + MS);
        if (versions[i].ok != (rc >= 0))
            fail_msg("%s: %s", versions[i].priority, gnutls_strerror(rc));
        client_free(c);
    }
    server_free(v);
}

/* Reloads without and with a connection that uses the certificate. */
static void a_replaced_certificate_is_freed(void **state)
{
    struct err e = {0};
    (void)state;
    certificate(1, GNUTLS_PK_RSA, true, true);
    struct server *v = tls_server();
    struct client *c = tls_client(v);
    for (int i = 0; i < 20; i++)
        OK(http_reload(&e, v->h));
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < 200; i++)
        OK(http_reload(&e, v->h));
    size_t after = mallinfo2().uordblks;
    assert_true(after < before + 100000);
    request_echo(v, c);
    client_free(c);
    server_free(v);
}

static void a_private_key_that_others_can_read_is_refused(void **state)
{
    struct http_opts o = {.tls_cert = cert_path, .tls_key = key_path};
    static const mode_t no[] = {0640, 0604, 0620, 0602, 0666}, yes[] = {0600, 0400, 0700};
    struct err e = {0};
    struct http *h;
    (void)state;
    certificate(1, GNUTLS_PK_ECDSA, true, true);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        assert_int_equal(chmod(key_path, no[i]), 0);
        assert_int_equal(http_open(&e, &h, &o), ERR_NO);
        assert_non_null(strstr(e.text, key_path));
        assert_non_null(strstr(e.text, "chmod 600"));
    }
    /* A credential of systemd has the mode that the manager has given it. */
    setenv("CREDENTIALS_DIRECTORY", dir, 1);
    OK(http_open(&e, &h, &o));
    http_close(h);
    setenv("CREDENTIALS_DIRECTORY", "/tmp/http_lis", 1); /* not a folder above it */
    assert_int_equal(http_open(&e, &h, &o), ERR_NO);
    unsetenv("CREDENTIALS_DIRECTORY");
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) {
        assert_int_equal(chmod(key_path, yes[i]), 0);
        OK(http_open(&e, &h, &o));
        http_close(h);
    }
    assert_int_equal(chmod(key_path, 0600), 0);
}

static void an_unreadable_certificate_fails_the_start(void **state)
{
    struct http_opts o = {.tls_cert = cert_path, .tls_key = key_path};
    struct err e = {0};
    struct http *h;
    (void)state;
    unlink(cert_path);
    assert_int_equal(http_open(&e, &h, &o), ERR_NO);
    certificate(1, GNUTLS_PK_ECDSA, true, true);
    certificate(2, GNUTLS_PK_ECDSA, false, true);
    assert_int_equal(http_open(&e, &h, &o), ERR_NO);
    assert_non_null(strstr(e.text, key_path));
    assert_null(h);
    o.tls_key = NULL;
    assert_int_equal(http_open(&e, &h, &o), ERR_NO);
    struct http_opts none = {0};
    OK(http_open(&e, &h, &none));
    OK(http_reload(&e, h)); /* without TLS a no-op */
    http_close(h);
    http_close(NULL);
}

static int free_credentials(void **state)
{
    (void)state;
    if (credentials)
        gnutls_certificate_free_credentials(credentials);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_invalid_address_is_refused),
        TEST(an_address_in_use_is_reported_by_name),
        TEST(at_most_sixteen_addresses),
        TEST(a_stale_unix_socket_is_replaced),
        TEST(an_inherited_socket_is_adopted),
        TEST(a_socket_outlives_its_server),
        TEST(stopping_completes_requests_in_flight),
        TEST(requests_and_streams_work_over_tls),
        TEST(a_malformed_request_over_tls_ends_the_connection),
        TEST(a_disconnect_over_tls_is_detected),
        TEST(a_connection_without_tls_is_closed),
        TEST(certificates_are_reloaded),
        TEST(old_versions_of_tls_are_refused),
        TEST(a_replaced_certificate_is_freed),
        TEST(a_private_key_that_others_can_read_is_refused),
        TEST(an_unreadable_certificate_fails_the_start),
    };
    return cmocka_run_group_tests(tests, NULL, free_credentials);
}
