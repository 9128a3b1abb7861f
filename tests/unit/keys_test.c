/* api/keys.h: the file of API keys, their limits, cache salts. Hashes and salts were computed with Python's hashlib. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/keys.h"
#include "unit/asserts.h"

#define S ((uint64_t)1000000000)

static struct err e;

static struct keys *parse(const char *text)
{
    struct keys *k;
    OK(keys_parse(&e, &k, "f", text, strlen(text)));
    return k;
}

static void refused(const char *text, const char *why)
{
    struct keys *k;
    assert_int_equal(keys_parse(&e, &k, "f", text, strlen(text)), ERR_NO);
    assert_null(k);
    assert_string_equal(e.text, why);
}

/* ---- the file ---- */

static void reads_keys_with_and_without_settings(void **state)
{
    (void)state;
    struct keys *k =
        parse("# comment\n\n"
              "  plain \r\n"
              "k1 name=alice role=user requests-per-minute=3 tokens-per-minute=1000 concurrent=2 weight=2.5\n"
              "\tk2\tname=b.o_b-2 role=admin # name=x\n"
              "k=3== weight=1 #\n"
              "last");
    assert_int_equal(k->n, 5);
    assert_true(k->has_roles && k->has_admin);
    /* hashlib.blake2b(b"plain", digest_size=32).hexdigest()[:16] */
    assert_string_equal(k->v[0]->name, "key-9b43b70de446f429");
    assert_int_equal(k->v[0]->role, KEY_ROLE_NONE);
    assert_string_equal(k->v[1]->name, "alice");
    assert_int_equal(k->v[1]->role, KEY_ROLE_USER);
    assert_int_equal(k->v[1]->max[KEY_REQUESTS], 3);
    assert_int_equal(k->v[1]->max[KEY_TOKENS], 1000);
    assert_int_equal(k->v[1]->max[KEY_CONCURRENT], 2);
    assert_true(k->v[1]->weight == 2.5);
    assert_int_equal(k->v[1]->line, 4);
    assert_string_equal(k->v[2]->name, "b.o_b-2");
    assert_int_equal(k->v[2]->role, KEY_ROLE_ADMIN);
    assert_ptr_equal(keys_find(k, "Bearer k1"), k->v[1]);
    assert_ptr_equal(keys_find(k, "bearer   k=3=="), k->v[3]);
    assert_ptr_equal(keys_find(k, "Bearer last"), k->v[4]);
    static const char *const none[] = {NULL,          "",           "Bearer",    "Bearer ",  "k1",
                                       "Basic k1",    "Bearer k1 ", "Bearer K1", "Bearer k", "Bearer k1 name=alice",
                                       "Bearer alice"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_null(keys_find(k, none[i]));
    keys_free(k);
    k = parse("a\nb\n");
    assert_false(k->has_roles || k->has_admin);
    keys_free(k);
}

static void a_wrong_line_is_refused_by_number_and_without_the_key(void **state)
{
    (void)state;
    refused("", "f: the key file contains no API key");
    refused("# only\n \n", "f: the key file contains no API key");
    refused("a\nsecret key\n",
            "f:2: word 2 is not a setting NAME=VALUE; the settings are name, role, requests-per-minute, "
            "tokens-per-minute, concurrent and weight");
    refused("secret name=a Name=b\n", "f:1: word 3 is not a setting NAME=VALUE; the settings are name, role, "
                                      "requests-per-minute, tokens-per-minute, concurrent and weight");
    refused("name=alice secret\n", "f:1: the line begins with a setting; the key comes first");
    refused("k name=\n", "f:1: name: 0 bytes, expected 1 to 48");
    refused("k name=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n", "f:1: name: 49 bytes, expected 1 to 48");
    refused("k name=a\"b\n", "f:1: name: expected letters, digits, '.', '_' and '-' only");
    refused("k name=a=b\n", "f:1: name: expected letters, digits, '.', '_' and '-' only");
    refused("k name=a name=b\n", "f:1: name is given twice");
    refused("k role=root\n", "f:1: role: expected user or admin");
    refused("k role=\n", "f:1: role: expected user or admin");
    static const char *const numbers[] = {"",    "0",    "-1", "+1",      "1.5",
                                          "1e3", "0x10", " 1", "1000001", "18446744073709551617"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char line[80], why[160];
        snprintf(line, sizeof line, "k requests-per-minute=%s\n", numbers[i]);
        snprintf(why, sizeof why, "f:1: requests-per-minute: '%s' is not a whole number from 1 to 1000000",
                 *numbers[i] == ' ' ? "" : numbers[i]);
        refused(line, why);
    }
    refused("k tokens-per-minute=1000000000001\n",
            "f:1: tokens-per-minute: '1000000000001' is not a whole number from 1 to 1000000000000");
    refused("k concurrent=65537\n", "f:1: concurrent: '65537' is not a whole number from 1 to 65536");
    refused("k weight=0\n", "f:1: weight: '0' is not a number from 0.001 to 1000");
    refused("k weight=nan\n", "f:1: weight: 'nan' is not a number from 0.001 to 1000");
    refused("k weight=1001\n", "f:1: weight: '1001' is not a number from 0.001 to 1000");
    refused("a name=x\n\nb name=x\n", "f:3: name: 'x' is that of line 1 too");
    refused("a name=x\nb\na name=y\n", "f:3: the same key as on line 1");
    refused("plain\nb name=key-9b43b70de446f429\n", "f:2: name: 'key-9b43b70de446f429' is that of line 1 too");
    refused("a\n\xef\xbb\xbf"
            "b\n",
            "f:2: byte 1 is not printable ASCII");
    refused("a\nb\x01\n", "f:2: byte 2 is not printable ASCII");
    refused("a\nb\rc\n", "f:2: byte 2 is not printable ASCII");
    refused("a\nb\x7f\n", "f:2: byte 2 is not printable ASCII");
    struct keys *k;
    assert_int_equal(keys_parse(&e, &k, "f", "a\0b\n", 4), ERR_NO);
    assert_string_equal(e.text, "f:1: byte 2 is not printable ASCII");
}

static void lengths_and_the_number_of_keys_are_bounded(void **state)
{
    (void)state;
    char line[600];
    memset(line, 'k', sizeof line);
    memcpy(line + 512, "\n", 2);
    keys_free(parse(line));
    memcpy(line + 513, "\n", 2);
    line[512] = 'k';
    refused(line, "f:1: the key has 513 bytes, the limit is 512");
    memcpy(line, "k name=", 7);
    refused(line, "f:1: name: 506 bytes, the limit is 128");
    char *text = malloc(16 * (KEYS_MAX + 1)), *p = text;
    for (int i = 0; i <= KEYS_MAX; i++)
        p += sprintf(p, "key%d\n", i);
    refused(text, "f:1025: too many API keys: the limit is 1024");
    p[-8] = 0; /* the last line */
    keys_free(parse(text));
    free(text);
}

static void a_file_must_be_private(void **state)
{
    (void)state;
    char path[] = "/tmp/keys_test.XXXXXX", why[200];
    struct keys *k;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "k name=x\n", 9), 9);
    OK(keys_read(&e, &k, path));
    assert_string_equal(k->v[0]->name, "x");
    keys_free(k);
    fchmod(fd, 0400);
    OK(keys_read(&e, &k, path));
    keys_free(k);
    fchmod(fd, 0640);
    assert_int_equal(keys_read(&e, &k, path), ERR_NO);
    snprintf(why, sizeof why, "%s: other users can read or change this key file (mode 0640): chmod 600 it", path);
    assert_string_equal(e.text, why);
    fchmod(fd, 0600);
    assert_int_equal(ftruncate(fd, KEYS_FILE_BYTES_MAX + 1), 0);
    assert_int_equal(keys_read(&e, &k, path), ERR_NO);
    snprintf(why, sizeof why, "%s: expected a regular file (key file) of at most 1048576 bytes", path);
    assert_string_equal(e.text, why);
    assert_int_equal(ftruncate(fd, 9), 0);
    if (!geteuid() && !fchown(fd, 12345, 0)) {
        assert_int_equal(keys_read(&e, &k, path), ERR_NO);
        snprintf(why, sizeof why, "%s: this key file belongs to another user (uid 12345): chown it to uid 0 or root",
                 path);
        assert_string_equal(e.text, why);
    }
    close(fd);
    unlink(path);
    assert_int_equal(keys_read(&e, &k, path), ERR_NO);
    assert_int_equal(keys_read(&e, &k, "/tmp"), ERR_NO);
    assert_string_equal(e.text, "/tmp: expected a regular file (key file) of at most 1048576 bytes");
}

static void a_new_file_keeps_what_its_names_have_used(void **state)
{
    (void)state;
    struct key_refusal no;
    struct keys *old = parse("k1 name=a requests-per-minute=1\nk2 name=b\n");
    struct key *a = key_ref(old->v[0]), *b = key_ref(old->v[1]);
    assert_true(key_may_begin(&no, a, S));
    key_begin(a, S);
    key_begin(b, S);
    struct keys *k = parse("k3 name=a requests-per-minute=2 role=user\nk1 name=c\n");
    keys_adopt(k, old);
    keys_free(old);
    assert_ptr_equal(keys_find(k, "Bearer k3"), a); /* in flight, with another key */
    assert_int_equal(a->n_running, 1);
    assert_int_equal(a->role, KEY_ROLE_USER);
    assert_int_equal(a->max[KEY_REQUESTS], 2);
    assert_false(key_may_begin(&no, a, S)); /* the minute is used up still */
    assert_string_equal(keys_find(k, "Bearer k1")->name, "c");
    assert_null(keys_find(k, "Bearer k2"));
    key_end(b); /* its name is gone, but not the request */
    key_unref(b);
    key_end(a);
    key_unref(a);
    keys_free(k);
}

/* ---- limits ---- */

static void requests_a_minute_refill_evenly(void **state)
{
    (void)state;
    struct key_refusal no;
    struct key_state s;
    struct keys *k = parse("k name=a requests-per-minute=6\n");
    struct key *a = k->v[0];
    uint64_t now = 1000 * S;
    for (int i = 6; i; i--) {
        assert_true(key_state(&s, a, KEY_REQUESTS, now));
        assert_int_equal(s.limit, 6);
        assert_int_equal(s.remaining, i);
        assert_true(s.reset_s == (6 - i) * 10);
        assert_true(key_may_begin(&no, a, now));
        key_begin(a, now);
        key_end(a);
    }
    assert_false(key_may_begin(&no, a, now));
    assert_string_equal(no.text, "rate limit of API key a: 6 requests a minute; retry in 10 s");
    assert_true(no.retry_s == 10);
    assert_false(key_may_begin(&no, a, now + 9 * S));
    assert_true(no.retry_s == 1);
    assert_false(key_may_begin(&no, a, now + 9 * S + S / 2));
    assert_true(no.retry_s == 1);
    assert_true(key_may_begin(&no, a, now + 10 * S)); /* after the time that was stated */
    key_begin(a, now + 10 * S);
    assert_false(key_may_begin(&no, a, now + 10 * S));
    assert_true(key_state(&s, a, KEY_REQUESTS, now + 3600 * S)); /* a minute's at most */
    assert_int_equal(s.remaining, 6);
    assert_int_equal(a->n_refused[KEY_REQUESTS], 4);
    assert_int_equal(a->n_request, 7);
    assert_false(key_state(&s, a, KEY_TOKENS, now));
    keys_free(k);
}

static void requests_at_a_time_are_counted_to_their_end(void **state)
{
    (void)state;
    struct key_refusal no;
    struct keys *k = parse("k name=a concurrent=2\n");
    struct key *a = k->v[0];
    for (int i = 0; i < 2; i++) {
        assert_true(key_may_begin(&no, a, S));
        key_begin(a, S);
    }
    assert_false(key_may_begin(&no, a, S));
    assert_string_equal(no.text, "rate limit of API key a: 2 requests at a time; retry in 1 s");
    key_end(a);
    assert_true(key_may_begin(&no, a, S));
    keys_free(k);
}

static void tokens_are_charged_in_advance_and_settled(void **state)
{
    (void)state;
    struct key_refusal no;
    struct key_state s;
    struct keys *k = parse("k name=a tokens-per-minute=600\nfree\n");
    struct key *a = k->v[0];
    uint64_t charged = 0, now = 1000 * S;
    assert_true(key_charge(&no, &charged, a, 100, 400, now));
    assert_int_equal(charged, 500);
    charged = 0;
    assert_false(key_charge(&no, &charged, a, 50, 100, now)); /* 10 a second: 5 s until 150 are there */
    assert_int_equal(charged, 0);
    assert_string_equal(no.text,
                        "rate limit of API key a: 600 tokens a minute, 100 are left, and this request needs 150 "
                        "(prompt 50, answer at most 100); retry in 5 s");
    assert_true(no.limit == KEY_TOKENS && no.retry_s == 5);
    assert_true(key_charge(&no, &charged, a, 50, 100, now + 5 * S));
    assert_int_equal(charged, 150);
    key_settle(a, 500, 120);
    key_settle(a, 150, 150);
    assert_true(key_state(&s, a, KEY_TOKENS, now + 5 * S));
    assert_int_equal(s.remaining, 380);
    charged = 0;
    /* More than the bucket can hold needs all of it, and what it uses beyond that is owed. */
    assert_false(key_charge(&no, &charged, a, 100, 5000, now + 5 * S));
    assert_true(no.retry_s == 22);
    assert_true(key_charge(&no, &charged, a, 100, 5000, now + 27 * S));
    assert_int_equal(charged, 600);
    assert_false(key_may_begin(&no, a, now + 27 * S)); /* known at its head */
    assert_string_equal(no.text, "rate limit of API key a: 600 tokens a minute, and none is left; retry in 1 s");
    key_settle(a, 600, 1200);
    assert_true(key_state(&s, a, KEY_TOKENS, now + 27 * S));
    assert_int_equal(s.remaining, 0);
    assert_true(s.reset_s == 120);
    assert_false(key_may_begin(&no, a, now + 27 * S));
    assert_true(no.retry_s == 61);
    assert_true(key_may_begin(&no, a, now + 88 * S));
    charged = 0;
    assert_true(key_charge(&no, &charged, k->v[1], UINT32_MAX, UINT64_MAX / 2, now)); /* without a limit */
    assert_int_equal(charged, 0);
    keys_free(k);
}

/* A batch takes at most the whole bucket, by all of its prompts together. */
static void the_prompts_of_a_request_are_charged_together(void **state)
{
    (void)state;
    struct key_refusal no;
    struct keys *k = parse("k name=a tokens-per-minute=600\n");
    struct key *a = k->v[0];
    uint64_t batch = 0, other = 0, now = 1000 * S;
    for (uint64_t i = 1; i <= 10; i++) {
        assert_true(key_charge(&no, &batch, a, 50, 200, now));
        assert_int_equal(batch, i * 250 < 600 ? i * 250 : 600);
    }
    assert_false(key_charge(&no, &other, a, 1, 0, now));
    key_settle(a, batch, 10 * 250);
    assert_false(key_charge(&no, &other, a, 1, 0, now + 190 * S)); /* 1900 are owed */
    assert_true(key_charge(&no, &other, a, 1, 0, now + 191 * S));
    keys_free(k);
}

/* ---- salts ---- */

static void a_salt_depends_on_the_key_and_on_the_own_salt(void **state)
{
    (void)state;
    char salt[KEY_SALT_BYTES];
    struct keys *k = parse("k-alice\n");
    /* key = blake2b(b"k-alice", digest_size=32).digest()
     * blake2b(b"phasepipe cache salt\0" + own, key=key, digest_size=32).hexdigest() */
    key_salt(salt, k->v[0]->hash, "", 0);
    assert_string_equal(salt, "f175491a6b5a4411901b63dae666f9cec58048422a6fff6d0906173d582a9caf");
    key_salt(salt, k->v[0]->hash, "s", 1);
    assert_string_equal(salt, "7830b930a8ae6888b66a65ae16797d4fa6f083db82de7c38b0dc9e3b581ebc91");
    keys_free(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_keys_with_and_without_settings),
        cmocka_unit_test(a_wrong_line_is_refused_by_number_and_without_the_key),
        cmocka_unit_test(lengths_and_the_number_of_keys_are_bounded),
        cmocka_unit_test(a_file_must_be_private),
        cmocka_unit_test(a_new_file_keeps_what_its_names_have_used),
        cmocka_unit_test(requests_a_minute_refill_evenly),
        cmocka_unit_test(requests_at_a_time_are_counted_to_their_end),
        cmocka_unit_test(tokens_are_charged_in_advance_and_settled),
        cmocka_unit_test(the_prompts_of_a_request_are_charged_together),
        cmocka_unit_test(a_salt_depends_on_the_key_and_on_the_own_salt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
