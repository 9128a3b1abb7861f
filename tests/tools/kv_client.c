/*
 * A client of kvstore for tests: executes one command for each line of stdin and prints one line. Prompts are generated
 * from a seed: block d of the prompt is equal for equal seeds and, if d is below SHARED, for all seeds.
 *
 *   kv_client URL MODEL_BYTE ARITH   KV of 2 layers, 1 head of 64, int8, a fingerprint of 32 times MODEL_BYTE
 *   kv_client URL watch              prints events until kvstore exits
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/time.h"
#include "link/session.h"
#include "link/store_client.h"

#define BLOCKS_MAX 16384
#define SHARED 2

static uint32_t ids[BLOCKS_MAX * KV_BLOCK], slot[BLOCKS_MAX], out[BLOCKS_MAX];
static uint8_t digests[BLOCKS_MAX * KV_DIGEST];
static uint64_t sum[BLOCKS_MAX];
static uint32_t credit[BLOCKS_MAX];
static uint64_t n_credit, n_prompt;
static struct kv_seq_info q;

static void prompt(uint32_t seed, uint64_t n)
{
    memset(digests, 0, sizeof digests);
    n_prompt = n;
    for (uint64_t d = 0; d < n; d++) {
        uint32_t s = d < SHARED ? 0 : seed;
        for (int i = 0; i < KV_BLOCK; i++)
            ids[d * KV_BLOCK + (uint64_t)i] = s * 100000 + (uint32_t)d * 32 + (uint32_t)i;
        memcpy(digests + d * KV_DIGEST, &s, 4);
        memcpy(digests + d * KV_DIGEST + 4, &d, 8);
    }
}

static int show(const struct kv_seq_info *s)
{
    printf("seq %" PRIu64 " gen %" PRIu64 " blocks %" PRIu64 " tail %" PRIu32 "%s\n", s->seq, s->gen, s->n_block,
           s->n_tail, s->pending ? " pending" : "");
    return 0;
}

/* Checks that each block of the sequence holds its digest, which publish has written. */
static int check(struct err *e, struct store_client *c)
{
    static int32_t table[BLOCKS_MAX];
    struct kv_arena *a = store_client_arena(c);
    int rc = kv_arena_table(e, a, table, q.n_block, q.seq, q.gen);
    for (uint64_t k = 0; k < q.n_block && !rc; k++)
        if (memcmp(kv_arena_bytes(a, (uint64_t)table[k]) + 64, digests + k * KV_DIGEST, KV_DIGEST))
            rc = err_set(e, ERR_NO, "block %" PRIu64 " has other bytes", k);
    if (!rc && !kv_arena_valid(a, q.seq, q.gen))
        rc = err_set(e, ERR_NO, "the sequence now belongs to another client");
    if (!rc)
        puts("ok");
    return rc;
}

static int publish(struct err *e, struct store_client *c, uint64_t n, uint32_t n_tail)
{
    struct kv_arena *a = store_client_arena(c);
    uint64_t at = q.n_block;
    if (n + (n_tail > 0) > n_credit || at + n > n_prompt)
        return err_set(e, ERR_NO, "too few reserved slots, or too short a prompt");
    for (uint64_t k = 0; k < n; k++) {
        slot[k] = credit[--n_credit];
        uint8_t *p = kv_arena_bytes(a, slot[k]);
        for (uint64_t i = 0; i + KV_DIGEST <= kv_arena_layout(a)->slot_bytes; i += KV_DIGEST)
            memcpy(p + i, digests + (at + k) * KV_DIGEST, KV_DIGEST);
        sum[k] = kv_arena_sum(a, slot[k]);
    }
    struct kv_publish u = {.seq = q.seq,
                           .gen = q.gen,
                           .at = at,
                           .slot = slot,
                           .sum = sum,
                           .n_block = n,
                           .digests = digests + at * KV_DIGEST,
                           .ids = ids + at * KV_BLOCK,
                           .n_tail = n_tail,
                           .tail = n_tail ? credit[--n_credit] : KV_NONE};
    int rc = store_client_publish(e, c, out, &u);
    for (uint64_t k = 0; k < n && !rc; k++)
        if (out[k] != slot[k])
            credit[n_credit++] = slot[k];
    if (rc)
        return rc;
    q.n_block += n;
    printf("published %" PRIu64 "\n", n);
    return 0;
}

static int stat(struct err *e, struct store_client *c)
{
    struct wire_kv_stat s;
    int rc = store_client_stat(e, c, &s);
    if (!rc)
        printf("total %" PRIu64 " free %" PRIu64 " cached %" PRIu64 " leased %" PRIu64 " quarantined %" PRIu64
               " credited %" PRIu64 " seqs %" PRIu64 " clients %" PRIu64 " disk %" PRIu64 " bad %" PRIu64 " %s\n",
               s.total, s.free, s.cached, s.leased, s.quarantined, s.credited, s.seqs, s.clients, s.disk_used,
               s.disk_bad, s.free + s.cached + s.leased + s.quarantined + s.credited == s.total ? "sound" : "UNSOUND");
    return rc;
}

static int by_value(const void *a, const void *b)
{
    return *(const uint64_t *)a < *(const uint64_t *)b ? -1 : *(const uint64_t *)a > *(const uint64_t *)b;
}

/* Prints the median time in ns of a transfer from this client to itself, and the bytes of the handle. */
static int time_transfer(struct err *e, struct store_client *c)
{
    static uint64_t ns[1001];
    struct kv_seq_info h;
    for (int i = 0; i < 1001; i++) {
        uint64_t from = time_now_ns();
        int rc = store_client_transfer_out(e, c, &h, q.seq, q.gen);
        rc = rc ? rc : store_client_transfer_in(e, c, &q, h.seq, h.gen);
        if (rc)
            return rc;
        ns[i] = time_now_ns() - from;
    }
    qsort(ns, 1001, sizeof *ns, by_value);
    printf("%" PRIu64 " ns %zu\n", ns[500], sizeof h.seq + sizeof h.gen);
    return 0;
}

/* Publishes the missing blocks of the prompt, 16 in a call, without writing their bytes. Prints the median time of a
 * block in the first and in the last quarter of the calls, in ns. */
static int time_publish(struct err *e, struct store_client *c)
{
    static uint64_t ns[BLOCKS_MAX / 16 + 1];
    struct kv_arena *a = store_client_arena(c);
    uint64_t n = 0, got;
    for (int rc; q.n_block < n_prompt; n++) {
        uint64_t left = n_prompt - q.n_block, n_block = left < 16 ? left : 16;
        rc = store_client_reserve(e, c, slot, &got, n_block, false);
        for (uint64_t k = 0; k < n_block && !rc; k++)
            sum[k] = kv_arena_sum(a, slot[k]);
        struct kv_publish u = {.seq = q.seq,
                               .gen = q.gen,
                               .at = q.n_block,
                               .slot = slot,
                               .sum = sum,
                               .n_block = n_block,
                               .digests = digests + q.n_block * KV_DIGEST,
                               .ids = ids + q.n_block * KV_BLOCK,
                               .tail = KV_NONE};
        uint64_t begin = time_now_ns();
        rc = rc ? rc : store_client_publish(e, c, out, &u);
        if (rc)
            return rc;
        ns[n] = (time_now_ns() - begin) / n_block;
        q.n_block += n_block;
    }
    qsort(ns, n / 4, sizeof *ns, by_value);
    qsort(ns + n - n / 4, n / 4, sizeof *ns, by_value);
    printf("first %" PRIu64 " last %" PRIu64 "\n", n ? ns[n / 8] : 0, n ? ns[n - n / 4 + n / 8] : 0);
    return 0;
}

/* Leases and releases the whole prompt, which must be cached. Prints the best time of a block, in ns. */
static int time_lease(struct err *e, struct store_client *c)
{
    uint64_t best = UINT64_MAX, ns;
    for (int i = 0; i < 9; i++) {
        struct kv_seq_info l;
        uint64_t begin = time_now_ns();
        int rc = store_client_lease(e, c, &l, ids, n_prompt * KV_BLOCK, digests, n_prompt, true);
        ns = time_now_ns() - begin;
        if (!rc && l.n_block != n_prompt)
            rc = err_set(e, ERR_NO, "only %" PRIu64 " of %" PRIu64 " blocks are cached", l.n_block, n_prompt);
        rc = rc ? rc : store_client_release(e, c, l.seq, l.gen);
        if (rc)
            return rc;
        best = ns < best ? ns : best;
    }
    printf("%" PRIu64 "\n", best / n_prompt);
    return 0;
}

static int one(struct err *e, struct store_client *c, const char *line)
{
    unsigned long long x = 0, y = 0;
    char word[32] = "";
    int n = sscanf(line, "%31s %llu %llu", word, &x, &y);
    uint64_t got;
    int rc;
    if (n >= 1 && (!strcmp(word, "lease") || !strcmp(word, "nowait"))) {
        prompt((uint32_t)x, y < BLOCKS_MAX ? y : BLOCKS_MAX);
        rc = store_client_lease(e, c, &q, ids, n_prompt * KV_BLOCK, digests, n_prompt, *word == 'l');
        return rc ? rc : show(&q);
    }
    if (!strcmp(word, "credit")) {
        rc = store_client_reserve(e, c, credit + n_credit, &got, x, y != 0);
        n_credit += got;
        return rc ? rc : printf("credit %" PRIu64 "\n", n_credit) < 0;
    }
    if (!strcmp(word, "free")) {
        rc = store_client_release(e, c, x, y);
        return rc ? rc : puts("ok") < 0;
    }
    if (!strcmp(word, "uncredit")) {
        rc = store_client_release_slots(e, c, credit, n_credit);
        n_credit = rc ? n_credit : 0;
        return rc ? rc : puts("ok") < 0;
    }
    if (!strcmp(word, "publish"))
        return publish(e, c, x, (uint32_t)y);
    if (!strcmp(word, "hand")) {
        rc = store_client_transfer_out(e, c, &q, q.seq, q.gen);
        return rc ? rc : show(&q);
    }
    if (!strcmp(word, "take")) {
        rc = store_client_transfer_in(e, c, &q, x, y);
        return rc ? rc : show(&q);
    }
    if (!strcmp(word, "release")) {
        rc = store_client_release(e, c, q.seq, q.gen);
        return rc ? rc : puts("ok") < 0;
    }
    if (!strcmp(word, "check"))
        return check(e, c);
    if (!strcmp(word, "stat"))
        return stat(e, c);
    if (!strcmp(word, "time-hand"))
        return time_transfer(e, c);
    if (!strcmp(word, "time-publish"))
        return time_publish(e, c);
    if (!strcmp(word, "time-lease"))
        return time_lease(e, c);
    if (!strcmp(word, "again")) {
        n_credit = 0;
        rc = store_client_renew_all(e, c);
        return rc ? rc : puts("ok") < 0;
    }
    if (!strcmp(word, "news")) {
        rc = store_client_next_event(e, c, &q, (int)x);
        return rc ? rc : show(&q);
    }
    return err_set(e, ERR_USAGE, "unknown command '%s'", word);
}

static int watch_event(struct err *e, struct wire_arena *a, const struct session_event *ev)
{
    struct wire_frame f = {.kind = WIRE_KV_OPEN, .kv_open = {.tag = 1, .from = wire_str_of("kv_client")}};
    int rc = 0;
    wire_arena_reset(a);
    if (ev->type == SESSION_UP) {
        rc = session_send(e, ev->s, &f);
        f = (struct wire_frame){.kind = WIRE_KV_WATCH, .kv_tag = {.tag = 2}};
        return rc ? rc : session_send(e, ev->s, &f);
    }
    if (ev->type != SESSION_FRAME)
        return err_set(e, ERR_SYS, "%s", ev->err.text);
    rc = session_frame(e, &f, a, ev);
    if (!rc && f.kind == WIRE_KV_ARENA)
        puts("here");
    if (!rc && f.kind == WIRE_KV_EVENT)
        printf("%sstored %zu evicted %zu\n", f.kv_event.reset ? "reset " : "", f.kv_event.stored.n / KV_DIGEST,
               f.kv_event.evicted.n / KV_DIGEST);
    fflush(stdout);
    return rc;
}

static int watch(struct err *e, const char *url)
{
    struct session_hub *h = NULL;
    struct session *s;
    struct session_event ev;
    struct session_hub_opts o = {.self = {"tool", "", 0}};
    struct wire_arena *a = wire_arena_new();
    int rc = a ? session_hub_new(e, &h, &o) : err_nomem(e, "an arena", 0);
    rc = rc ? rc : session_dial_plain(e, &s, h, url, NULL);
    while (!rc) {
        session_hub_wait(h, -1);
        while (!rc && session_hub_next(h, &ev))
            rc = watch_event(e, a, &ev);
    }
    session_hub_free(h);
    wire_arena_free(a);
    fprintf(stderr, "kv_client: %s\n", e->text);
    return rc;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct store_client *c;
    struct kv_kind k = {.type = KERN_KV_INT8, .n_layer = 2, .n_kv_head = 1, .head_dim = 64};
    if (argc < 3)
        return ERR_USAGE;
    if (argc == 3 && !strcmp(argv[2], "watch"))
        return watch(&e, argv[1]);
    memset(k.model, (int)strtol(argv[2], NULL, 16), sizeof k.model);
    snprintf(k.arith, sizeof k.arith, "%s", argc > 3 ? argv[3] : "pp1");
    snprintf(k.layout, sizeof k.layout, "%s", "cpu-hl1");
    struct store_client_opts o = {.url = argv[1], .name = "kv_client", .kind = &k, .timeout_ms = 3000};
    if (store_client_open(&e, &c, &o)) {
        fprintf(stderr, "kv_client: %s\n", e.text);
        return e.code;
    }
    puts("here");
    fflush(stdout);
    for (char line[256]; fgets(line, sizeof line, stdin);) {
        if (one(&e, c, line))
            printf("no %d: %s\n", (int)store_client_why(c), e.text);
        fflush(stdout);
    }
    store_client_close(c);
    return 0;
}
