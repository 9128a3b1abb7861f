/*
 * The default policy: places requests by cached prefixes, refuses those that would miss their SLO, and balances the
 * workers between prefill and decode.
 *
 * - Placement: a request goes to the prefill worker with the least expected time to its first token, which is the work
 *   left on that worker, plus the transfer of blocks that only another store has (modelled; not implemented: the blocks
 *   are computed again), plus the prefill of the rest. If that worker is busy the request waits for it, and later
 *   requests may be placed first.
 * - Conditional disaggregation: if few tokens are left to prefill beyond the prefix cached at a decode worker, the
 *   request runs there whole, in chunks.
 * - Admission control: a request whose first token would come after its SLO, or that would slow decoding beyond its
 *   SLO, is refused when it arrives, with a time to retry after. The load of decode is estimated for the end of the
 *   prefill: it includes all requests before decode. With the present load only, the two pools would oscillate.
 * - Roles: a worker changes its role if one pool is overloaded and the other is not, in two checks in a row, and if the
 *   pool that it leaves is not overloaded without it.
 * - Preemption: a request that is more urgent than a running one, and finds no capacity, preempts the one with the
 *   least lost work. A request is preempted only a few times.
 */
#include "sched/pool.h"

#include <math.h>

#include "base/time.h"

static const struct sched_setting settings[] = {
    {"slo_ttft_ms", 0},     /* for requests without one; 0: none */
    {"slo_tpot_ms", 0},     /* the same */
    {"admit", 1},           /* 0: never refuse by SLO */
    {"admit_share", 1},     /* largest ratio of estimate and SLO at admission */
    {"transfer_us", 5},     /* transfer of a token's KV between two stores */
    {"local_tokens", 512},  /* conditional disaggregation: fewer tokens to compute than this … */
    {"local_share", 0.7},   /* … and less than this share of the prompt */
    {"look", 32},           /* requests examined that cannot be placed */
    {"ready_ms", 500},      /* how long a prefilled request waits for a decode worker within its SLO */
    {"roles", 1},           /* 0: roles stay as they are */
    {"role_ms", 1000},      /* interval of role checks */
    {"role_high", 1.0},     /* a pool with a higher load is overloaded … */
    {"role_low", 0.5},      /* … and one with a lower load is not */
    {"role_ttft_ms", 1000}, /* the target of prefill if there is no SLO */
    {"role_tpot_ms", 100},  /* the target of decode if there is no SLO */
    {"preempts", 3},        /* most times a request is preempted */
};

#define NOTE_NS (20 * NS_MS)          /* how long the choice of a busy worker is kept before it is computed again */
#define PREEMPT_NS (20 * NS_MS)       /* from a preemption to the next search */
#define PREEMPT_SEARCH_NS (5 * NS_MS) /* from a search without result to the next one */

struct kv {
    uint64_t roles_ns, preempt_ns;
    int overloaded; /* the pool, at the last role check: 1 prefill, -1 decode */
    /* valid during one call of decide */
    struct pools p;
    uint64_t now_ns, slo_ttft_ns, slo_tpot_ns;
    double transfer_ns, local_tokens, local_share;
    uint32_t hits[SCHED_STORES_MAX], n_hit;
};

static uint64_t ns_of(const struct sched *s, const char *name)
{
    return (uint64_t)(sched_get(s, name) * 1e6);
}

static double ttft_slo(const struct kv *k, const struct sched_request *r)
{
    return (double)(r->slo_ttft_ns ? r->slo_ttft_ns : k->slo_ttft_ns);
}

static double tpot_slo(const struct kv *k, const struct sched_request *r)
{
    return (double)(r->slo_tpot_ns ? r->slo_tpot_ns : k->slo_tpot_ns);
}

/* ---- placement ---- */

static uint32_t hit_at(const struct kv *k, int store)
{
    return store >= 0 && (uint32_t)store < k->n_hit ? k->hits[store] : 0;
}

static uint32_t best_hit(const struct kv *k)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < k->n_hit; i++)
        best = k->hits[i] > best ? k->hits[i] : best;
    return best;
}

/* Expected ns to the first token on a worker. Blocks that only another store has are transferred if that is faster than
 * to compute them (modelled; not implemented: the blocks are computed again). n_new: tokens to compute. */
static double cost_on(const struct kv *k, const struct sched_request *r, const struct sched_worker *w,
                      uint32_t elsewhere, uint32_t *n_new)
{
    uint32_t all = r->n_prompt + r->n_out, own = hit_at(k, w->store);
    double cost = sched_prefill_ns(w, all - own, own);
    *n_new = all - own;
    if (elsewhere > own) {
        double transferred = (elsewhere - own) * k->transfer_ns + sched_prefill_ns(w, all - elsewhere, elsewhere);
        if (transferred < cost) {
            cost = transferred;
            *n_new = all - elsewhere;
        }
    }
    return cost + (double)w->prefill_left_ns;
}

struct choice {
    const struct sched_worker *w;
    enum sched_phase phase;
    double cost;
};

/* Conditional disaggregation: few tokens to compute, and the step stays within the SLO. */
static bool local(const struct kv *k, const struct sched_request *r, const struct sched_worker *w, uint32_t n_new)
{
    double slo = tpot_slo(k, r);
    if (n_new >= k->local_tokens || n_new >= k->local_share * (r->n_prompt + r->n_out))
        return false;
    return !slo || sched_step_ns(w, w->context + r->n_prompt, w->n_decode + w->n_whole + 1) < slo;
}

/* True if it has no capacity for a whole request. Sequence slots are freed slowly, so other workers are preferred. */
static bool full(const struct sched *s, const struct sched_request *r, const struct sched_worker *w)
{
    return !w->seqs || sched_need(s, r, w, SCHED_ON_WHOLE) > w->blocks;
}

/* The added cost of prefill in chunks between the decode steps of a worker; more requests break a tie. */
static double mixed_cost(const struct sched_request *r, const struct sched_worker *w)
{
    uint32_t batch = w->n_decode + w->n_whole;
    return batch ? sched_step_ns(w, w->context + r->n_prompt, batch + 1) + batch : 0;
}

static struct choice choose(struct kv *k, const struct sched *s, const struct sched_request *r)
{
    struct choice best = {NULL, SCHED_ON_PREFILL, INFINITY}, best_full = best;
    k->n_hit = sched_n_store(s);
    sched_hits(s, r, k->hits, k->n_hit);
    uint32_t elsewhere = best_hit(k), n_new;
    for (uint32_t i = 0; i < sched_n_worker(s); i++) {
        const struct sched_worker *w = sched_worker_at(s, i);
        bool prefills = pool_has(&k->p, w, SCHED_PREFILL), decodes = pool_has(&k->p, w, SCHED_DECODE);
        bool split = k->p.n_prefill && k->p.n_decode;
        bool alone = !split || w->role == SCHED_BOTH; /* a worker of both roles gains nothing by a transfer to itself */
        if (!prefills && !(decodes && (alone || k->local_tokens > 0)))
            continue;
        double cost = cost_on(k, r, w, elsewhere, &n_new);
        if (prefills && !alone && pool_fits(s, r, w, SCHED_ON_PREFILL) && cost < best.cost)
            best = (struct choice){w, SCHED_ON_PREFILL, cost};
        if (!decodes || !(alone || local(k, r, w, n_new)))
            continue;
        cost += mixed_cost(r, w);
        struct choice *to = full(s, r, w) ? &best_full : &best;
        if (cost < to->cost && pool_fits(s, r, w, SCHED_ON_WHOLE))
            *to = (struct choice){w, SCHED_ON_WHOLE, cost};
    }
    best = best.w ? best : best_full;
    for (uint32_t i = 0; i < sched_n_worker(s) && !best.w; i++) { /* too large for the pools: any worker that fits */
        const struct sched_worker *w = sched_worker_at(s, i);
        if (!w->draining && pool_fits(s, r, w, SCHED_ON_WHOLE))
            best = (struct choice){w, SCHED_ON_WHOLE, cost_on(k, r, w, elsewhere, &n_new)};
    }
    return best;
}

/* The least loaded worker of the decode pool with capacity. within: the step must stay within the request's SLO. */
static const struct sched_worker *decoder(const struct kv *k, const struct sched *s, const struct sched_request *r,
                                          bool within)
{
    const struct sched_worker *best = NULL;
    double least = INFINITY, slo = tpot_slo(k, r);
    for (uint32_t i = 0; i < sched_n_worker(s); i++) {
        const struct sched_worker *w = sched_worker_at(s, i);
        if (!pool_has(&k->p, w, SCHED_DECODE) || !sched_room(s, r, w, SCHED_ON_DECODE))
            continue;
        uint32_t batch = w->n_decode + w->n_whole + 1;
        double step = sched_step_ns(w, w->context + r->n_prompt + r->n_out, batch);
        if (within && slo && batch > 1 && step > slo)
            continue;
        double cost = step + batch + (w->store != r->kv_store ? k->transfer_ns * r->n_prompt / 64 : 0) +
                      (double)w->prefill_left_ns / 64;
        if (cost < least) {
            least = cost;
            best = w;
        }
    }
    return best;
}

static void place_ready(struct kv *k, struct sched *s)
{
    double look = sched_get(s, "look");
    uint64_t patience = ns_of(s, "ready_ms");
    const struct sched_request *next;
    for (const struct sched_request *r = sched_waiting(s, true, NULL); r && look > 0; r = next) {
        next = sched_waiting(s, true, r);
        const struct sched_worker *w = decoder(k, s, r, k->now_ns < r->since_ns + patience);
        if (!w || !sched_place(s, r, w, SCHED_ON_DECODE, 0))
            look--;
    }
}

/* True if the worker that was chosen less than NOTE_NS ago is still busy. */
static bool waits(const struct kv *k, const struct sched *s, const struct sched_request *r)
{
    if (r->note_ns <= k->now_ns || r->note_worker >= sched_n_worker(s))
        return false;
    const struct sched_worker *w = sched_worker_at(s, r->note_worker);
    return !w->seqs || !w->tokens;
}

static uint32_t index_of(const struct sched *s, const struct sched_worker *w)
{
    uint32_t i = 0;
    while (sched_worker_at(s, i) != w)
        i++;
    return i;
}

/* True if a worker that may prefill has capacity now. */
static bool can_prefill(const struct kv *k)
{
    return k->p.open_prefill || (k->p.open_decode && k->local_tokens > 0);
}

static void place_queued(struct kv *k, struct sched *s)
{
    double look = sched_get(s, "look");
    const struct sched_request *next;
    for (const struct sched_request *r = sched_waiting(s, false, NULL); r && look > 0; r = next) {
        next = sched_waiting(s, false, r);
        if (waits(k, s, r)) {
            look--;
            continue;
        }
        struct choice c = choose(k, s, r);
        bool placed = false;
        if (c.w && sched_room(s, r, c.w, c.phase))
            placed = sched_place(s, r, c.w, c.phase, 0);
        if (placed && !c.w->seqs)
            pools_count(&k->p, s);
        if (!placed) {
            look--;
            if (c.w)
                sched_note(r, index_of(s, c.w), k->now_ns + NOTE_NS);
        }
        if (!can_prefill(k))
            break;
    }
}

/* ---- admission control ---- */

/* The expected duration of a decode step, ns, with all requests that run or wait for decode, and n_more with `more`
 * tokens in sum, spread over n_worker workers. */
static double decode_ahead(const struct kv *k, const struct sched *s, uint32_t n_more, uint64_t more, uint32_t n_worker)
{
    uint64_t context = more;
    uint32_t batch = n_more + (uint32_t)sched_n_waiting(s, true);
    const struct sched_worker *any = NULL;
    double mean = n_more ? (double)more / n_more : 0;
    for (uint32_t i = 0; i < sched_n_worker(s); i++) {
        const struct sched_worker *w = sched_worker_at(s, i);
        context += w->context;
        batch += w->n_decode + w->n_whole + w->n_prefill;
        any = pool_has(&k->p, w, SCHED_DECODE) ? w : any;
    }
    uint32_t n = n_worker ? n_worker : 1;
    return any ? sched_step_ns(any, (context + (uint64_t)mean * (uint64_t)sched_n_waiting(s, true)) / n,
                               (batch + n - 1) / n)
               : 0;
}

/* Estimates the ns that the pool needs to finish its current prefills and then n waiting requests with `tokens` tokens
 * in total. */
static double prefill_ahead(const struct kv *k, const struct sched *s, uint64_t tokens, size_t n)
{
    double ns = 0;
    const struct sched_worker *any = NULL;
    for (uint32_t i = 0; i < sched_n_worker(s); i++) {
        const struct sched_worker *w = sched_worker_at(s, i);
        ns += (double)w->prefill_left_ns;
        any = pool_has(&k->p, w, SCHED_PREFILL) ? w : any;
    }
    if (any && n && tokens)
        ns += (double)n * sched_prefill_ns(any, (uint32_t)(tokens / n), 0);
    return ns / (k->p.n_prefill ? k->p.n_prefill : sched_n_worker(s) ? sched_n_worker(s) : 1);
}

static bool admit_one(struct kv *k, struct sched *s, const struct sched_request *r, double share, uint64_t tokens,
                      size_t n)
{
    double slo = ttft_slo(k, r) * share, tpot = tpot_slo(k, r);
    struct choice c = {NULL, SCHED_ON_PREFILL, 0};
    if (slo || tpot)
        c = choose(k, s, r);
    if (!c.w)
        return true;
    double wait = n ? prefill_ahead(k, s, tokens, n) : 0;
    double own = c.cost - (double)c.w->prefill_left_ns;
    double eta = wait + own > c.cost ? wait + own : c.cost;
    sched_set_eta(r, (uint64_t)eta);
    if (slo && eta > slo)
        return !sched_refuse(s, r, false, (uint64_t)(eta - slo),
                             "the first token would come later than the service level (slo_ttft_ms) allows");
    if (tpot && c.phase == SCHED_ON_PREFILL && decode_ahead(k, s, 1, r->n_prompt, k->p.n_decode) > tpot)
        return !sched_refuse(s, r, false, (uint64_t)tpot * 16,
                             "tokens would come more slowly than the service level (slo_tpot_ms) allows");
    return true;
}

/* Requests that arrive together are admitted in order, and the estimate for each counts only those before it. If it
 * counted all of them, nearly none of a burst would be admitted. */
static void admit(struct kv *k, struct sched *s)
{
    double share = sched_get(s, "admit_share");
    uint64_t tokens = sched_waiting_tokens(s);
    size_t n = sched_n_waiting(s, false);
    for (const struct sched_request *r = NULL; (r = sched_arrived(s, r));) {
        n -= n > 0;
        tokens -= r->n_prompt < tokens ? r->n_prompt : tokens;
    }
    for (const struct sched_request *r = sched_arrived(s, NULL), *next; r; r = next) {
        next = sched_arrived(s, r);
        if (admit_one(k, s, r, share, tokens, n)) {
            tokens += r->n_prompt;
            n++;
        }
    }
}

/* ---- roles ---- */

struct load {
    double prefill, decode;
};

/* The share of sequence slots or KV slots of the decode pool in use, whichever is more, with n_decode workers. */
static double occupancy(const struct kv *k, const struct sched *s, uint32_t n_decode)
{
    uint64_t used = sched_n_waiting(s, true), all = 0, blocks = 0, blocks_all = 0;
    for (uint32_t i = 0; i < sched_n_worker(s); i++) {
        const struct sched_worker *w = sched_worker_at(s, i);
        used += w->n_decode + w->n_whole;
        if (!pool_has(&k->p, w, SCHED_DECODE))
            continue;
        all += w->seqs_all;
        blocks_all += w->blocks_all;
        blocks += w->blocks_all - w->blocks;
    }
    double scale = k->p.n_decode ? (double)n_decode / k->p.n_decode : 1, a = all ? (double)used / (double)all : 0,
           b = blocks_all ? (double)blocks / (double)blocks_all : 0;
    return (a > b ? a : b) / (scale > 0 ? scale : 1);
}

/* Expected delays relative to their targets, with so many workers; 1: the target. */
static struct load load_of(const struct kv *k, const struct sched *s, uint32_t n_prefill, uint32_t n_decode)
{
    double ttft = k->slo_ttft_ns ? (double)k->slo_ttft_ns : sched_get(s, "role_ttft_ms") * 1e6;
    double tpot = k->slo_tpot_ns ? (double)k->slo_tpot_ns : sched_get(s, "role_tpot_ms") * 1e6;
    double ahead = prefill_ahead(k, s, sched_waiting_tokens(s), sched_n_waiting(s, false));
    struct load x;
    x.prefill = 2 * ahead * k->p.n_prefill / n_prefill / ttft;
    x.decode = decode_ahead(k, s, 0, 0, n_decode) / tpot;
    double full = occupancy(k, s, n_decode) * 1.1;
    x.decode = full > x.decode ? full : x.decode;
    return x;
}

/* The worker with this role that has the least work left. */
static const struct sched_worker *spare(const struct sched *s, enum sched_role role)
{
    const struct sched_worker *best = NULL;
    for (uint32_t i = 0; i < sched_n_worker(s); i++) {
        const struct sched_worker *w = sched_worker_at(s, i);
        if (w->draining || w->role != role)
            continue;
        bool less =
            best && (role == SCHED_DECODE ? w->context < best->context : w->prefill_left_ns < best->prefill_left_ns);
        best = !best || less ? w : best;
    }
    return best;
}

static void roles(struct kv *k, struct sched *s)
{
    uint64_t every = ns_of(s, "role_ms");
    if (!sched_get(s, "roles") || k->now_ns < k->roles_ns || !k->p.n_prefill || !k->p.n_decode)
        return;
    k->roles_ns = k->now_ns + every;
    double high = sched_get(s, "role_high"), low = sched_get(s, "role_low");
    struct load x = load_of(k, s, k->p.n_prefill, k->p.n_decode);
    int overloaded = 0;
    if (x.prefill > high && k->p.n_decode > 1 && load_of(k, s, k->p.n_prefill, k->p.n_decode - 1).decode < high &&
        (x.decode < low || x.prefill > 2 * x.decode))
        overloaded = 1;
    else if (x.decode > high && k->p.n_prefill > 1 && load_of(k, s, k->p.n_prefill - 1, k->p.n_decode).prefill < high &&
             (x.prefill < low || x.decode > 2 * x.prefill))
        overloaded = -1;
    bool twice = overloaded && overloaded == k->overloaded;
    k->overloaded = overloaded;
    const struct sched_worker *w = twice ? spare(s, overloaded > 0 ? SCHED_DECODE : SCHED_PREFILL) : NULL;
    if (w && sched_set_role(s, w, overloaded > 0 ? SCHED_PREFILL : SCHED_DECODE))
        pools_count(&k->p, s);
}

/* ---- preemption ---- */

static const struct sched_request *victim(const struct sched_worker *w, const struct sched_request *urgent,
                                          double preempts)
{
    const struct sched_request *best = NULL;
    for (const struct sched_request *r = NULL; (r = sched_running(w, r));) {
        if (r->priority <= urgent->priority || r->preempts >= preempts || r->running == SCHED_ON_PREFILL)
            continue;
        if (!best || r->priority > best->priority ||
            (r->priority == best->priority && r->n_prompt + r->n_out < best->n_prompt + best->n_out))
            best = r;
    }
    return best;
}

/* One preemption at a time; the next only after this one could have an effect. */
static void preempt(struct kv *k, struct sched *s)
{
    const struct sched_request *urgent = sched_waiting(s, true, NULL);
    if (!urgent || urgent->priority >= sched_priority_last(s) || k->now_ns < k->preempt_ns ||
        k->now_ns < urgent->since_ns + NS_MS)
        return;
    const struct sched_request *best = NULL;
    double preempts = sched_get(s, "preempts");
    for (uint32_t i = 0; i < sched_n_worker(s); i++) {
        const struct sched_worker *w = sched_worker_at(s, i);
        if (!pool_has(&k->p, w, SCHED_DECODE) || !pool_fits(s, urgent, w, SCHED_ON_DECODE))
            continue;
        if (w->seqs && sched_need(s, urgent, w, SCHED_ON_DECODE) <= w->blocks)
            return; /* it has room and waits for a worker within its SLO */
        const struct sched_request *r = victim(w, urgent, preempts);
        if (r && (!best || r->priority > best->priority))
            best = r;
    }
    bool done = best && sched_preempt(s, best);
    k->preempt_ns = k->now_ns + (done ? PREEMPT_NS : PREEMPT_SEARCH_NS);
}

static int decide(struct err *e, void *state, struct sched *s)
{
    struct kv *k = state;
    (void)e;
    k->now_ns = sched_now_ns(s);
    if (!sched_n_waiting(s, false) && !sched_n_waiting(s, true) && k->now_ns < k->roles_ns)
        return 0;
    k->slo_ttft_ns = ns_of(s, "slo_ttft_ms");
    k->slo_tpot_ns = ns_of(s, "slo_tpot_ms");
    k->transfer_ns = sched_get(s, "transfer_us") * 1e3;
    k->local_tokens = sched_get(s, "local_tokens");
    k->local_share = sched_get(s, "local_share");
    pools_count(&k->p, s);
    roles(k, s);
    if (sched_get(s, "admit"))
        admit(k, s);
    if (k->p.open_decode && sched_n_waiting(s, true)) {
        place_ready(k, s);
        pools_count(&k->p, s);
    }
    if (can_prefill(k) && sched_n_waiting(s, false))
        place_queued(k, s);
    if (sched_n_waiting(s, true))
        preempt(k, s);
    return 0;
}

const struct sched_policy sched_policy_kv = {
    .name = "kv",
    .settings = settings,
    .n_setting = sizeof settings / sizeof *settings,
    .n_state = sizeof(struct kv),
    .decide = decide,
};
