/* The kinds between services: wire/sched.h and wire/session.h. */
#include "wire/fields.h"

#include <float.h>

#define AT_NS(S) U64(S, "at_ns", at_ns)
#define WHO(S, key, m, ...) NAME(S, key, m, ##__VA_ARGS__)
#define COEF(S, m) F32(S, #m, m, 0, FLT_MAX)
#define DIGESTS(S, key, m) BIN(S, key, m, 0, WIRE_DIGESTS_BYTES_MAX)
#define REASON(S)                                                                                                      \
    {                                                                                                                  \
        .name = "reason", .type = TY_REASON, AT(S, reason), ALONE, .lo = 1, .hi = 4                                    \
    }

static const struct wire_field submit_fields[] = {
    AT_NS(wire_submit),
    WHO(wire_submit, "gw", gw, REQ),
    U64(wire_submit, "job", job, REQ),
    INT(wire_submit, "n_prompt", TY_U32, n_prompt, 0, WIRE_IDS_MAX, REQ),
    U32(wire_submit, "max_tokens", max_tokens, .def = UINT32_MAX),
    DIGESTS(wire_submit, "digests", digests),
    INT(wire_submit, "priority", TY_I32, priority, INT32_MIN, INT32_MAX),
    U64(wire_submit, "deadline_ns", deadline_ns),
    U64(wire_submit, "slo_ttft_ns", slo_ttft_ns),
    U64(wire_submit, "slo_tpot_ns", slo_tpot_ns),
    STR(wire_submit, "reply", reply, WIRE_URL_BYTES_MAX),
    BOOL(wire_submit, "again", again),
    U32(wire_submit, "attempt", attempt),
    U32(wire_submit, "n_out", n_out),
    LIST(wire_submit, "out", TY_IDS, out, n_out_id, WIRE_IDS_MAX),
    BIN(wire_submit, "body", body, 0, WIRE_BODY_BYTES_MAX),
    WHO(wire_submit, "tenant", tenant),
};

static const struct wire_field cancel_fields[] = {
    AT_NS(wire_cancel),
    WHO(wire_cancel, "gw", gw, REQ),
    U64(wire_cancel, "job", job, REQ),
};

static const struct wire_field run_fields[] = {
    WHO(wire_run, "gw", gw, REQ),
    U64(wire_run, "job", job, REQ),
    U64(wire_run, "order", order, REQ),
    U32(wire_run, "attempt", attempt),
    WHO(wire_run, "phase", phase, REQ),
    U32(wire_run, "n_prompt", n_prompt),
    U32(wire_run, "max_tokens", max_tokens),
    U32(wire_run, "n_out", n_out),
};
const struct wire_rec wire_run_rec = {
    "run", run_fields, N_OF(run_fields), sizeof(struct wire_run), false, offsetof(struct wire_run, extra)};

static const struct wire_field join_fields[] = {
    AT_NS(wire_join),
    WHO(wire_join, "worker", worker, REQ),
    U64(wire_join, "inc", inc),
    WHO(wire_join, "role", role, REQ),
    WHO(wire_join, "store", store),
    WHO(wire_join, "compat", compat),
    INT(wire_join, "seqs", TY_U32, seqs, 1, 1 << 20, REQ),
    INT(wire_join, "blocks", TY_U64, blocks, 1, (uint64_t)1 << 40, REQ),
    U32(wire_join, "max_len", max_len, .def = UINT32_MAX),
    U32(wire_join, "chunk", chunk),
    COEF(wire_join, pre_a),
    COEF(wire_join, pre_b),
    COEF(wire_join, pre_c),
    COEF(wire_join, dec_a),
    COEF(wire_join, dec_b),
    COEF(wire_join, dec_c),
    LIST(wire_join, "run", TY_MAPS, run, n_run, WIRE_RUNS_MAX, .rec = &wire_run_rec),
};

static const struct wire_field report_fields[] = {
    AT_NS(wire_report),
    WHO(wire_report, "worker", worker),
    U64(wire_report, "inc", inc),
    WHO(wire_report, "gw", gw, REQ),
    U64(wire_report, "job", job, REQ),
    U64(wire_report, "order", order),
    U32(wire_report, "attempt", attempt),
    WHO(wire_report, "what", what, REQ),
    U32(wire_report, "n_done", n_done),
    U32(wire_report, "cached", cached),
    U32(wire_report, "n_out", n_out),
    LIST(wire_report, "out", TY_IDS, out, n_out_id, WIRE_IDS_MAX),
    U64(wire_report, "busy_ns", busy_ns),
    BIN(wire_report, "handle", handle, 0, WIRE_HANDLE_BYTES_MAX),
    WHO(wire_report, "store", store),
    U32(wire_report, "code", code),
    STR(wire_report, "text", text, WIRE_ERROR_BYTES_MAX),
    REASON(wire_report),
};

static const struct wire_field gone_fields[] = {
    AT_NS(wire_gone),           WHO(wire_gone, "worker", worker),
    WHO(wire_gone, "gw", gw),   WHO(wire_gone, "store", store),
    U64(wire_gone, "inc", inc),
};

static const struct wire_field blocks_fields[] = {
    AT_NS(wire_blocks),
    WHO(wire_blocks, "store", store, REQ),
    BOOL(wire_blocks, "reset", reset),
    DIGESTS(wire_blocks, "stored", stored),
    DIGESTS(wire_blocks, "evicted", evicted),
};

static const struct wire_field knob_fields[] = {
    AT_NS(wire_knob),
    WHO(wire_knob, "name", name, REQ),
    WHO(wire_knob, "worker", worker),
    F32(wire_knob, "value", value, -FLT_MAX, FLT_MAX),
};

static const struct wire_field tick_fields[] = {AT_NS(wire_tick)};

static const struct wire_field ack_fields[] = {
    AT_NS(wire_ack),
    WHO(wire_ack, "to", to, REQ),
    U64(wire_ack, "job", job, REQ),
    U32(wire_ack, "attempt", attempt),
    U32(wire_ack, "n_before", n_before),
    U64(wire_ack, "eta_ns", eta_ns),
};

static const struct wire_field refuse_fields[] = {
    AT_NS(wire_refuse),
    WHO(wire_refuse, "to", to, REQ),
    U64(wire_refuse, "job", job),
    BOOL(wire_refuse, "never", never),
    BOOL(wire_refuse, "ending", ending),
    U64(wire_refuse, "retry_ns", retry_ns),
    STR(wire_refuse, "text", text, WIRE_ERROR_BYTES_MAX, REQ),
};

static const struct wire_field order_fields[] = {
    AT_NS(wire_order),
    WHO(wire_order, "to", to, REQ),
    U64(wire_order, "order", order, REQ),
    WHO(wire_order, "gw", gw, REQ),
    U64(wire_order, "job", job, REQ),
    U32(wire_order, "attempt", attempt, REQ),
    WHO(wire_order, "phase", phase, REQ),
    U32(wire_order, "n_prompt", n_prompt),
    U32(wire_order, "max_tokens", max_tokens, .def = UINT32_MAX),
    U32(wire_order, "cached", cached),
    U32(wire_order, "chunk", chunk),
    U64(wire_order, "lease_ns", lease_ns),
    INT(wire_order, "priority", TY_I32, priority, INT32_MIN, INT32_MAX),
    WHO(wire_order, "from", from),
    BIN(wire_order, "handle", handle, 0, WIRE_HANDLE_BYTES_MAX),
    STR(wire_order, "reply", reply, WIRE_URL_BYTES_MAX),
    U32(wire_order, "n_out", n_out),
    LIST(wire_order, "out", TY_IDS, out, n_out_id, WIRE_IDS_MAX),
    BIN(wire_order, "body", body, 0, WIRE_BODY_BYTES_MAX),
};

static const struct wire_field control_fields[] = {
    AT_NS(wire_control),
    WHO(wire_control, "to", to, REQ),
    WHO(wire_control, "what", what, REQ),
    WHO(wire_control, "gw", gw),
    U64(wire_control, "job", job),
    U64(wire_control, "order", order),
    U32(wire_control, "attempt", attempt),
    WHO(wire_control, "role", role),
};

static const struct wire_field done_fields[] = {
    AT_NS(wire_done),
    WHO(wire_done, "to", to, REQ),
    U64(wire_done, "job", job, REQ),
    U32(wire_done, "attempt", attempt),
    U32(wire_done, "n_out", n_out),
    {.name = "reason", .type = TY_REASON, AT(wire_done, reason), ALONE, .lo = 1, .hi = 4, REQ},
    U32(wire_done, "code", code),
    STR(wire_done, "text", text, WIRE_ERROR_BYTES_MAX),
};

static const struct wire_field stat_fields[] = {
    AT_NS(wire_stat),
    WHO(wire_stat, "to", to),
    U64(wire_stat, "submitted", submitted),
    U64(wire_stat, "running", running),
    U64(wire_stat, "waiting", waiting),
    U64(wire_stat, "stop", stop),
    U64(wire_stat, "length", length),
    U64(wire_stat, "cancelled", cancelled),
    U64(wire_stat, "expired", expired),
    U64(wire_stat, "error", error),
    U64(wire_stat, "refused", refused),
    U64(wire_stat, "retried", retried),
    U64(wire_stat, "preempted", preempted),
    U64(wire_stat, "stale", stale),
    U64(wire_stat, "placed", placed),
    U32(wire_stat, "workers", workers),
    U32(wire_stat, "gateways", gateways),
    U32(wire_stat, "stores", stores),
    U32(wire_stat, "tombs", tombs),
    U64(wire_stat, "ttft_p50_ns", ttft_p50_ns),
    U64(wire_stat, "ttft_p99_ns", ttft_p99_ns),
    U64(wire_stat, "itl_p50_ns", itl_p50_ns),
    U64(wire_stat, "itl_p99_ns", itl_p99_ns),
    WHO(wire_stat, "policy", policy),
    U64(wire_stat, "bytes", bytes),
    U64(wire_stat, "bytes_max", bytes_max),
};

static const struct wire_field worker_fields[] = {
    AT_NS(wire_worker),
    WHO(wire_worker, "name", name, REQ),
    WHO(wire_worker, "role", role),
    WHO(wire_worker, "store", store),
    BOOL(wire_worker, "draining", draining),
    U32(wire_worker, "seqs", seqs),
    U32(wire_worker, "seqs_all", seqs_all),
    U32(wire_worker, "tokens", tokens),
    U64(wire_worker, "blocks", blocks),
    U64(wire_worker, "blocks_all", blocks_all),
    U32(wire_worker, "n_prefill", n_prefill),
    U32(wire_worker, "n_decode", n_decode),
    U32(wire_worker, "n_whole", n_whole),
    U64(wire_worker, "context", context),
    U64(wire_worker, "step_ns", step_ns),
    U32(wire_worker, "batch", batch),
    U64(wire_worker, "inc", inc),
    WHO(wire_worker, "compat", compat),
    LIST(wire_worker, "steps", TY_IDS, steps, n_steps, WIRE_STEPS_MAX),
    U64(wire_worker, "step_tokens", step_tokens),
    U64(wire_worker, "bytes", bytes),
    U64(wire_worker, "bytes_max", bytes_max),
    U64(wire_worker, "out_bytes", out_bytes),
    U64(wire_worker, "out_bytes_max", out_bytes_max),
};

static const struct wire_field session_hello_fields[] = {
    U32(wire_session_hello, "version", version, REQ),
    INT(wire_session_hello, "role", TY_NAME, role, 1, WIRE_ROLE_BYTES_MAX, REQ),
    NAME(wire_session_hello, "name", name, REQ),
    U64(wire_session_hello, "inc", inc, REQ),
    U32(wire_session_hello, "silence_ms", silence_ms),
};

static const struct wire_field session_ack_fields[] = {U64(wire_session_ack, "n", n, REQ)};

static const struct wire_field session_bye_fields[] = {
    STR(wire_session_bye, "reason", reason, WIRE_BYE_BYTES_MAX),
};

static const struct wire_field capacity_fields[] = {
    AT_NS(wire_capacity),
    WHO(wire_capacity, "worker", worker, REQ),
    U64(wire_capacity, "inc", inc),
    U64(wire_capacity, "orders", orders),
    U32(wire_capacity, "seqs", seqs),
    U32(wire_capacity, "tokens", tokens),
    U64(wire_capacity, "blocks", blocks),
    U64(wire_capacity, "step_ns", step_ns),
    U64(wire_capacity, "context", context),
    U32(wire_capacity, "batch", batch),
    BOOL(wire_capacity, "drain", drain),
    LIST(wire_capacity, "steps", TY_IDS, steps, n_steps, WIRE_STEPS_MAX),
    U64(wire_capacity, "step_tokens", step_tokens),
    U64(wire_capacity, "out_bytes", out_bytes),
    U64(wire_capacity, "out_bytes_max", out_bytes_max),
};

static const struct wire_field prompt_fields[] = {
    U64(wire_prompt, "seq", seq, REQ),
    INT(wire_prompt, "index", TY_U32, index, 0, WIRE_CHOICES_MAX - 1, REQ),
    INT(wire_prompt, "n", TY_U32, n, 1, WIRE_CHOICES_MAX, REQ),
    STR(wire_prompt, "id", id, WIRE_ID_BYTES_MAX),
    INT(wire_prompt, "n_prompt", TY_U32, n_prompt, 0, WIRE_IDS_MAX, REQ),
    U32(wire_prompt, "max_tokens", max_tokens, .def = UINT32_MAX),
    BIN(wire_prompt, "digests", digests, 0, WIRE_IDS_MAX),
    INT(wire_prompt, "priority", TY_I32, priority, INT32_MIN, INT32_MAX),
    U64(wire_prompt, "born_ns", born_ns),
    U64(wire_prompt, "load_ns", load_ns),
    LIST(wire_prompt, "spans", TY_MAPS, span, n_span, WIRE_SPANS_MAX, .rec = &wire_span_rec),
    BIN(wire_prompt, "body", body, 0, WIRE_BODY_BYTES_MAX, REQ),
};

#define ROW(kind) [kind - WIRE_SERVICE_FIRST]
static const struct wire_rec kinds[WIRE_SERVICE_LAST - WIRE_SERVICE_FIRST + 1] = {
    ROW(WIRE_SUBMIT) = KIND("submit", submit_fields, wire_submit),
    ROW(WIRE_CANCEL) = KIND("cancel", cancel_fields, wire_cancel),
    ROW(WIRE_JOIN) = KIND("join", join_fields, wire_join),
    ROW(WIRE_REPORT) = KIND("report", report_fields, wire_report),
    ROW(WIRE_GONE) = KIND("gone", gone_fields, wire_gone),
    ROW(WIRE_BLOCKS) = KIND("blocks", blocks_fields, wire_blocks),
    ROW(WIRE_KNOB) = KIND("knob", knob_fields, wire_knob),
    ROW(WIRE_TICK) = KIND("tick", tick_fields, wire_tick),
    ROW(WIRE_ACK) = KIND("ack", ack_fields, wire_ack),
    ROW(WIRE_REFUSE) = KIND("refuse", refuse_fields, wire_refuse),
    ROW(WIRE_ORDER) = KIND("order", order_fields, wire_order),
    ROW(WIRE_CONTROL) = KIND("control", control_fields, wire_control),
    ROW(WIRE_DONE) = KIND("done", done_fields, wire_done),
    ROW(WIRE_STAT) = KIND("stat", stat_fields, wire_stat),
    ROW(WIRE_WORKER) = KIND("worker", worker_fields, wire_worker),
    ROW(WIRE_SESSION_HELLO) = KIND("session_hello", session_hello_fields, wire_session_hello),
    ROW(WIRE_SESSION_ACK) = KIND("session_ack", session_ack_fields, wire_session_ack),
    ROW(WIRE_SESSION_PING) = {"session_ping", NULL, 0, sizeof(struct wire_session_ping), false,
                              offsetof(struct wire_session_ping, extra)},
    ROW(WIRE_SESSION_BYE) = KIND("session_bye", session_bye_fields, wire_session_bye),
    ROW(WIRE_CAPACITY) = KIND("capacity", capacity_fields, wire_capacity),
    ROW(WIRE_PROMPT) = KIND("prompt", prompt_fields, wire_prompt),
};

const struct wire_rec *wire_service_rec(uint64_t kind)
{
    const struct wire_rec *r = &kinds[kind - WIRE_SERVICE_FIRST];
    return r->name ? r : NULL; /* NULL: an unused number */
}
