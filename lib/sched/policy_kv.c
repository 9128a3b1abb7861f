/*
 * The default: goes where the prefix is, keeps the promises of time, and shares the workers out between the phases.
 *
 * - A request goes to the prefill worker with the least expected time to its first token: what that worker has still to
 *   do, plus the transfer of blocks that another store has, plus the prefill of the rest. If that worker is busy the
 *   request waits for it, and those behind may go first.
 * - What is short where a decode worker has the rest cached is prefilled there in chunks (conditional disaggregation).
 * - A request whose first token would come after its SLO, or that would push decoding over its own, is refused while it
 *   is new, with the time after which it is worth asking again. The load of decoding is that of the time when the
 *   prefill ends: everything on its way counts; judged by the present load the two pools would swing in turns.
 * - The pressure on each pool is watched; a worker changes its role when one pool is pressed and the other is not,
 * twice in a row, and when the pool it leaves stays unpressed without it.
 * - A request that is more urgent than a running one, and finds no seat, preempts the one with the least lost work;
 *   nobody is preempted more than a few times.
 */
#include "sched/pool.h"

#include <math.h>

static const struct sched_default knobs[] = {
    {"slo_ttft_ms", 0},     /* for requests that name none; 0: none */
    {"slo_tpot_ms", 0},     /* the same */
    {"admit", 1},           /* 0: never refuse by SLO */
    {"admit_share", 1},     /* share of the SLO that the estimate may fill */
    {"transfer_us", 5},     /* of a token's KV between two stores */
    {"local_tokens", 512},  /* conditional disaggregation: fewer tokens to compute than this … */
    {"local_share", 0.7},   /* … and less than this share of the prompt */
    {"look", 32},           /* requests looked at that must wait */
    {"ready_ms", 500},      /* a prefilled request waits no longer than this for a decode worker within its SLO */
    {"roles", 1},           /* 0: roles stay as they are */
    {"role_ms", 1000},      /* how often roles are looked at */
    {"role_high", 1.0},     /* pressed */
    {"role_low", 0.5},      /* not pressed */
    {"role_ttft_ms", 1000}, /* what presses prefill where there is no SLO */
    {"role_tpot_ms", 100},  /* what presses decode where there is no SLO */
    {"preempts", 3},        /* most times a request is preempted */
};

#define NOTE_NS 20000000 /* how long a request that waits for a busy worker is not looked at anew */

struct kv {
    uint64_t roles_ns, preempt_ns;
    int lean; /* which pool was pressed at the last look: 1 prefill, -1 decode */
    /* of one decision */
    struct pools p;
    uint64_t now_ns, slo_ttft_ns, slo_tpot_ns;
    double transfer_ns, local_tokens, local_share;
    bool admit;
    uint32_t hits[SCHED_STORES_MAX], n_hit;
};

static uint64_t ns_of(const struct sched_view *v, const char *name)
{
    return (uint64_t)(sched_view_knob(v, name) * 1e6);
}

static double ttft_slo(const struct kv *k, const struct sched_job *j)
{
    return (double)(j->slo_ttft_ns ? j->slo_ttft_ns : k->slo_ttft_ns);
}

static double tpot_slo(const struct kv *k, const struct sched_job *j)
{
    return (double)(j->slo_tpot_ns ? j->slo_tpot_ns : k->slo_tpot_ns);
}

/* ---- where ---- */

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

/* Expected ns to the first token on a worker. Blocks that only another store has are fetched where that is quicker than
 * to compute them. */
static double cost_on(const struct kv *k, const struct sched_job *j, const struct sched_worker *w, uint32_t elsewhere,
                      uint32_t *n_new)
{
    uint32_t all = j->n_prompt + j->n_out, own = hit_at(k, w->store);
    double cost = sched_prefill_ns(w, all - own, own);
    *n_new = all - own;
    if (elsewhere > own) {
        double fetched = (elsewhere - own) * k->transfer_ns + sched_prefill_ns(w, all - elsewhere, elsewhere);
        if (fetched < cost) {
            cost = fetched;
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

static bool local(const struct kv *k, const struct sched_job *j, const struct sched_worker *w, uint32_t n_new)
{
    double slo = tpot_slo(k, j);
    if (n_new >= k->local_tokens || n_new >= k->local_share * (j->n_prompt + j->n_out))
        return false;
    return !slo || sched_step_ns(w, w->context + j->n_prompt, w->n_decode + w->n_whole + 1) < slo;
}

/* A seat of an answer is held for long: nobody waits for one where another has one free. */
static bool full(const struct sched_view *v, const struct sched_job *j, const struct sched_worker *w)
{
    return !w->seqs || sched_need(v, j, w, SCHED_ON_WHOLE) > w->blocks;
}

/* Its chunks go with steps of those that decode there; of equals the one with the fewest goes first. */
static double beside(const struct sched_job *j, const struct sched_worker *w)
{
    uint32_t batch = w->n_decode + w->n_whole;
    return batch ? sched_step_ns(w, w->context + j->n_prompt, batch + 1) + batch : 0;
}

static struct choice choose(struct kv *k, const struct sched_view *v, const struct sched_job *j)
{
    struct choice best = {NULL, SCHED_ON_PREFILL, INFINITY}, seatless = best;
    k->n_hit = sched_n_store(v);
    sched_hits(v, j, k->hits, k->n_hit);
    uint32_t elsewhere = best_hit(k), n_new;
    for (uint32_t i = 0; i < sched_n_worker(v); i++) {
        const struct sched_worker *w = sched_worker_at(v, i);
        bool prefills = pool_has(&k->p, w, SCHED_PREFILL), decodes = pool_has(&k->p, w, SCHED_DECODE);
        bool split = k->p.n_prefill && k->p.n_decode;
        bool alone = !split || w->role == SCHED_BOTH; /* what does both gains nothing by handing over to itself */
        if (!prefills && !(decodes && (alone || k->local_tokens > 0)))
            continue;
        double cost = cost_on(k, j, w, elsewhere, &n_new);
        if (prefills && !alone && pool_fits(v, j, w, SCHED_ON_PREFILL) && cost < best.cost)
            best = (struct choice){w, SCHED_ON_PREFILL, cost};
        if (!decodes || !(alone || local(k, j, w, n_new)))
            continue;
        cost += beside(j, w);
        struct choice *to = full(v, j, w) ? &seatless : &best;
        if (cost < to->cost && pool_fits(v, j, w, SCHED_ON_WHOLE))
            *to = (struct choice){w, SCHED_ON_WHOLE, cost};
    }
    best = best.w ? best : seatless;
    for (uint32_t i = 0; i < sched_n_worker(v) && !best.w; i++) { /* too large for the pools: whoever can */
        const struct sched_worker *w = sched_worker_at(v, i);
        if (!w->draining && pool_fits(v, j, w, SCHED_ON_WHOLE))
            best = (struct choice){w, SCHED_ON_WHOLE, cost_on(k, j, w, elsewhere, &n_new)};
    }
    return best;
}

/* The least loaded of the decoding pool with room; within: only where the step stays within the request's SLO. */
static const struct sched_worker *decoder(const struct kv *k, const struct sched_view *v, const struct sched_job *j,
                                          bool within)
{
    const struct sched_worker *best = NULL;
    double least = INFINITY, slo = tpot_slo(k, j);
    for (uint32_t i = 0; i < sched_n_worker(v); i++) {
        const struct sched_worker *w = sched_worker_at(v, i);
        if (!pool_has(&k->p, w, SCHED_DECODE) || !sched_room(v, j, w, SCHED_ON_DECODE))
            continue;
        uint32_t batch = w->n_decode + w->n_whole + 1;
        double step = sched_step_ns(w, w->context + j->n_prompt + j->n_out, batch);
        if (within && slo && batch > 1 && step > slo)
            continue;
        double cost = step + batch + (w->store != j->kv_store ? k->transfer_ns * j->n_prompt / 64 : 0) +
                      (double)w->prefill_left_ns / 64;
        if (cost < least) {
            least = cost;
            best = w;
        }
    }
    return best;
}

static void place_ready(struct kv *k, struct sched_view *v)
{
    double look = sched_view_knob(v, "look");
    uint64_t patience = ns_of(v, "ready_ms");
    const struct sched_job *next;
    for (const struct sched_job *j = sched_waiting(v, true, NULL); j && look > 0; j = next) {
        next = sched_waiting(v, true, j);
        const struct sched_worker *w = decoder(k, v, j, k->now_ns < j->since_ns + patience);
        if (!w || !sched_place(v, j, w, SCHED_ON_DECODE, 0))
            look--;
    }
}

/* It waits for a worker that is still busy, and has been looked at a moment ago. */
static bool waits(const struct kv *k, const struct sched_view *v, const struct sched_job *j)
{
    if (j->note_ns <= k->now_ns || j->note_worker >= sched_n_worker(v))
        return false;
    const struct sched_worker *w = sched_worker_at(v, j->note_worker);
    return !w->seqs || !w->tokens;
}

static uint32_t place_of(const struct sched_view *v, const struct sched_worker *w)
{
    uint32_t i = 0;
    while (sched_worker_at(v, i) != w)
        i++;
    return i;
}

/* Whether any worker that could prefill takes orders now. */
static bool any_use(const struct kv *k)
{
    return k->p.open_prefill || (k->p.open_decode && k->local_tokens > 0);
}

static void place_queued(struct kv *k, struct sched_view *v)
{
    double look = sched_view_knob(v, "look");
    const struct sched_job *next;
    for (const struct sched_job *j = sched_waiting(v, false, NULL); j && look > 0; j = next) {
        next = sched_waiting(v, false, j);
        if (waits(k, v, j)) {
            look--;
            continue;
        }
        struct choice c = choose(k, v, j);
        bool placed = false;
        if (c.w && sched_room(v, j, c.w, c.phase))
            placed = sched_place(v, j, c.w, c.phase, 0);
        if (placed && !c.w->seqs)
            pools_count(&k->p, v);
        if (!placed) {
            look--;
            if (c.w)
                sched_note(v, j, place_of(v, c.w), k->now_ns + NOTE_NS);
        }
        if (!any_use(k))
            break;
    }
}

/* ---- whether ---- */

/* Everything on its way to decoding, spread over the pool: ns of a step. */
static double decode_ahead(const struct kv *k, const struct sched_view *v, uint32_t n_more, uint64_t more,
                           uint32_t n_worker)
{
    uint64_t context = more;
    uint32_t batch = n_more + (uint32_t)sched_n_waiting(v, true);
    const struct sched_worker *any = NULL;
    double mean = batch ? (double)more / n_more : 0;
    for (uint32_t i = 0; i < sched_n_worker(v); i++) {
        const struct sched_worker *w = sched_worker_at(v, i);
        context += w->context;
        batch += w->n_decode + w->n_whole + w->n_prefill;
        any = pool_has(&k->p, w, SCHED_DECODE) ? w : any;
    }
    uint32_t n = n_worker ? n_worker : 1;
    return any ? sched_step_ns(any, (context + (uint64_t)mean * (uint64_t)sched_n_waiting(v, true)) / n,
                               (batch + n - 1) / n)
               : 0;
}

/* What the workers have still to do and n requests of so many tokens that wait, spread over the pool. */
static double prefill_ahead(const struct kv *k, const struct sched_view *v, uint64_t tokens, size_t n)
{
    double ns = 0;
    const struct sched_worker *any = NULL;
    for (uint32_t i = 0; i < sched_n_worker(v); i++) {
        const struct sched_worker *w = sched_worker_at(v, i);
        ns += (double)w->prefill_left_ns;
        any = pool_has(&k->p, w, SCHED_PREFILL) ? w : any;
    }
    if (any && n && tokens)
        ns += (double)n * sched_prefill_ns(any, (uint32_t)(tokens / n), 0);
    return ns / (k->p.n_prefill ? k->p.n_prefill : sched_n_worker(v) ? sched_n_worker(v) : 1);
}

static bool admit_one(struct kv *k, struct sched_view *v, const struct sched_job *j, double share, uint64_t tokens,
                      size_t n)
{
    double slo = ttft_slo(k, j) * share, tpot = tpot_slo(k, j);
    struct choice c = {NULL, SCHED_ON_PREFILL, 0};
    if (slo || tpot)
        c = choose(k, v, j);
    if (!c.w)
        return true;
    double wait = n ? prefill_ahead(k, v, tokens, n) : 0;
    double own = c.cost - (double)c.w->prefill_left_ns;
    double eta = wait + own > c.cost ? wait + own : c.cost;
    sched_set_eta(v, j, (uint64_t)eta);
    if (slo && eta > slo)
        return !sched_refuse(v, j, false, (uint64_t)(eta - slo),
                             "its first token would come too late: try again later");
    if (tpot && c.phase == SCHED_ON_PREFILL && decode_ahead(k, v, 1, j->n_prompt, k->p.n_decode) > tpot)
        return !sched_refuse(v, j, false, (uint64_t)tpot * 16, "its tokens would come too slowly: try again later");
    return true;
}

/* Of requests that come at one instant each waits for those before it alone: were all of them counted, nearly none of a
 * burst would be taken. */
static void admit(struct kv *k, struct sched_view *v)
{
    double share = sched_view_knob(v, "admit_share");
    uint64_t tokens = sched_waiting_tokens(v);
    size_t n = sched_n_waiting(v, false);
    for (const struct sched_job *j = NULL; (j = sched_fresh(v, j));) {
        n -= n > 0;
        tokens -= j->n_prompt < tokens ? j->n_prompt : tokens;
    }
    for (const struct sched_job *j = sched_fresh(v, NULL), *next; j; j = next) {
        next = sched_fresh(v, j);
        if (admit_one(k, v, j, share, tokens, n)) {
            tokens += j->n_prompt;
            n++;
        }
    }
}

/* ---- roles ---- */

struct pressure {
    double prefill, decode;
};

static double seats(const struct kv *k, const struct sched_view *v, uint32_t n_decode)
{
    uint64_t used = sched_n_waiting(v, true), all = 0, blocks = 0, blocks_all = 0;
    for (uint32_t i = 0; i < sched_n_worker(v); i++) {
        const struct sched_worker *w = sched_worker_at(v, i);
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

static struct pressure press(const struct kv *k, const struct sched_view *v, uint32_t n_prefill, uint32_t n_decode)
{
    double ttft = k->slo_ttft_ns ? (double)k->slo_ttft_ns : sched_view_knob(v, "role_ttft_ms") * 1e6;
    double tpot = k->slo_tpot_ns ? (double)k->slo_tpot_ns : sched_view_knob(v, "role_tpot_ms") * 1e6;
    double ahead = prefill_ahead(k, v, sched_waiting_tokens(v), sched_n_waiting(v, false));
    struct pressure x;
    x.prefill = 2 * ahead * k->p.n_prefill / n_prefill / ttft;
    x.decode = decode_ahead(k, v, 0, 0, n_decode) / tpot;
    double full = seats(k, v, n_decode) * 1.1;
    x.decode = full > x.decode ? full : x.decode;
    return x;
}

/* Of the pool with the role, the one with the least to finish. */
static const struct sched_worker *spare(const struct sched_view *v, enum sched_role role)
{
    const struct sched_worker *best = NULL;
    for (uint32_t i = 0; i < sched_n_worker(v); i++) {
        const struct sched_worker *w = sched_worker_at(v, i);
        if (w->draining || w->role != role)
            continue;
        bool less =
            best && (role == SCHED_DECODE ? w->context < best->context : w->prefill_left_ns < best->prefill_left_ns);
        best = !best || less ? w : best;
    }
    return best;
}

static void roles(struct kv *k, struct sched_view *v)
{
    uint64_t every = ns_of(v, "role_ms");
    if (!sched_view_knob(v, "roles") || k->now_ns < k->roles_ns || !k->p.n_prefill || !k->p.n_decode)
        return;
    k->roles_ns = k->now_ns + every;
    double high = sched_view_knob(v, "role_high"), low = sched_view_knob(v, "role_low");
    struct pressure x = press(k, v, k->p.n_prefill, k->p.n_decode);
    int lean = 0;
    if (x.prefill > high && k->p.n_decode > 1 && press(k, v, k->p.n_prefill, k->p.n_decode - 1).decode < high &&
        (x.decode < low || x.prefill > 2 * x.decode))
        lean = 1;
    else if (x.decode > high && k->p.n_prefill > 1 && press(k, v, k->p.n_prefill - 1, k->p.n_decode).prefill < high &&
             (x.prefill < low || x.decode > 2 * x.prefill))
        lean = -1;
    bool twice = lean && lean == k->lean;
    k->lean = lean;
    const struct sched_worker *w = twice ? spare(v, lean > 0 ? SCHED_DECODE : SCHED_PREFILL) : NULL;
    if (w && sched_set_role(v, w, lean > 0 ? SCHED_PREFILL : SCHED_DECODE))
        pools_count(&k->p, v);
}

/* ---- preemption ---- */

static const struct sched_job *victim(const struct sched_view *v, const struct sched_worker *w,
                                      const struct sched_job *urgent, double preempts)
{
    const struct sched_job *best = NULL;
    for (const struct sched_job *j = NULL; (j = sched_running(v, w, j));) {
        if (j->priority <= urgent->priority || j->preempts >= preempts || j->running == SCHED_ON_PREFILL)
            continue;
        if (!best || j->priority > best->priority ||
            (j->priority == best->priority && j->n_prompt + j->n_out < best->n_prompt + best->n_out))
            best = j;
    }
    return best;
}

/* One at a time, and then time for it to have an effect. */
static void preempt(struct kv *k, struct sched_view *v)
{
    const struct sched_job *urgent = sched_waiting(v, true, NULL);
    if (!urgent || urgent->priority >= sched_priority_last(v) || k->now_ns < k->preempt_ns ||
        k->now_ns < urgent->since_ns + 1000000)
        return;
    const struct sched_job *best = NULL;
    double preempts = sched_view_knob(v, "preempts");
    for (uint32_t i = 0; i < sched_n_worker(v); i++) {
        const struct sched_worker *w = sched_worker_at(v, i);
        if (!pool_has(&k->p, w, SCHED_DECODE) || !pool_fits(v, urgent, w, SCHED_ON_DECODE))
            continue;
        if (w->seqs && sched_need(v, urgent, w, SCHED_ON_DECODE) <= w->blocks)
            return; /* there is room: it waits for its SLO */
        const struct sched_job *j = victim(v, w, urgent, preempts);
        if (j && (!best || j->priority > best->priority))
            best = j;
    }
    bool done = best && sched_preempt(v, best);
    k->preempt_ns = k->now_ns + (done ? 20000000 : 5000000); /* a search in vain is not repeated at once either */
}

static int decide(struct err *e, void *state, struct sched_view *v)
{
    struct kv *k = state;
    (void)e;
    k->now_ns = sched_view_now(v);
    if (!sched_n_waiting(v, false) && !sched_n_waiting(v, true) && k->now_ns < k->roles_ns)
        return 0;
    k->slo_ttft_ns = ns_of(v, "slo_ttft_ms");
    k->slo_tpot_ns = ns_of(v, "slo_tpot_ms");
    k->transfer_ns = sched_view_knob(v, "transfer_us") * 1e3;
    k->local_tokens = sched_view_knob(v, "local_tokens");
    k->local_share = sched_view_knob(v, "local_share");
    pools_count(&k->p, v);
    roles(k, v);
    if (sched_view_knob(v, "admit"))
        admit(k, v);
    if (k->p.open_decode && sched_n_waiting(v, true)) {
        place_ready(k, v);
        pools_count(&k->p, v);
    }
    if (any_use(k) && sched_n_waiting(v, false))
        place_queued(k, v);
    if (sched_n_waiting(v, true))
        preempt(k, v);
    return 0;
}

const struct sched_policy sched_policy_kv = {
    .name = "kv",
    .knobs = knobs,
    .n_knob = sizeof knobs / sizeof *knobs,
    .n_state = sizeof(struct kv),
    .decide = decide,
};
