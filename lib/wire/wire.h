/*
 * Frames: structs, limits and the version; lib/wire/schema*.c has the table of kinds and fields, docs/protocol.md
 * describes them.
 *
 * A frame is one msgpack map with string keys; the first is "k", its kind. On a pipe a frame is preceded by its length
 * as a msgpack uint32 (0xce, big endian), so a stream stays plain msgpack. The payload of `blk` is a bin under "data",
 * the last field, which is written by writev and read into its destination without a copy.
 *
 * A stream is `hello` … `bye`, and may repeat (cat a b). An end of file without `bye` is an error that names the
 * previous stage, the `from` of its hello.
 *
 * Unknown fields of a frame are kept in `extra` and written again; those of a request are forwarded from tok to end.
 * Decoded structs borrow from the reader until its next wire_read. A reader belongs to one thread. A writer has a lock,
 * so several threads may write whole frames. A main that writes frames ignores SIGPIPE, so that the end of the next
 * stage becomes an error text.
 */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#include "err/err.h"

#define WIRE_VERSION 7

/* Limits, which a decoder checks before it allocates. */
#define WIRE_FRAME_BYTES_MAX (256u << 20) /* a whole frame */
#define WIRE_HEAD_BYTES_MAX (64u << 20)   /* a frame without its payload */
#define WIRE_IDS_MAX (4u << 20)           /* ids of a prompt */
#define WIRE_STR_BYTES_MAX (16u << 20)    /* a text */
#define WIRE_STOPS_MAX 64
#define WIRE_STOP_IDS_MAX 1024
#define WIRE_BIAS_MAX 4096
#define WIRE_ALLOWED_MAX (1u << 20) /* ids to which sampling is restricted */
#define WIRE_BAD_MAX 2048           /* forbidden sequences of ids */
#define WIRE_BAD_IDS_MAX 65536      /* ids of all forbidden sequences */
#define WIRE_TOP_MAX 64             /* top log-probabilities of a position */
#define WIRE_SPANS_MAX 256
#define WIRE_DEPTH_MAX 16
#define WIRE_NAME_BYTES_MAX 64 /* a name: of a program, a stage, a host, a type; printable ASCII */
#define WIRE_ID_BYTES_MAX 1024 /* id of a request */
#define WIRE_SALT_BYTES_MAX 1024
#define WIRE_EXTRA_MAX 64          /* unknown fields of a map; their keys are 1 to 64 bytes of printable ASCII */
#define WIRE_ERROR_BYTES_MAX 65536 /* text of an err frame */

enum wire_kind { /* explicit, never renumbered */
                 WIRE_HELLO = 1,
                 WIRE_TOK = 2,
                 WIRE_OPEN = 3,
                 WIRE_BLK = 4,
                 WIRE_KV = 5,
                 WIRE_OUT = 6,
                 WIRE_END = 7,
                 WIRE_ERR = 8,
                 WIRE_BYE = 9,
                 WIRE_ASK = 10, /* from a gateway to tokenize */
                 /* 32 to 47: kvstore, wire/store.h; 41 is retired */
                 WIRE_KV_OPEN = 32,
                 WIRE_KV_ARENA = 33,
                 WIRE_KV_LEASE = 34,
                 WIRE_KV_SEQ = 35,
                 WIRE_KV_CREDIT = 36,
                 WIRE_KV_SLOTS = 37,
                 WIRE_KV_PUBLISH = 38,
                 WIRE_KV_HAND = 39,
                 WIRE_KV_TAKE = 40,
                 WIRE_KV_FREE = 42,
                 WIRE_KV_RENEW = 43,
                 WIRE_KV_STAT = 44,
                 WIRE_KV_WATCH = 45,
                 WIRE_KV_EVENT = 46,
                 WIRE_KV_NO = 47,
                 /* 48 to 64 and 69: the scheduler, wire/sched.h; 51 and 62 are retired */
                 WIRE_SUBMIT = 48,
                 WIRE_CANCEL = 49,
                 WIRE_JOIN = 50,
                 WIRE_REPORT = 52,
                 WIRE_GONE = 53,
                 WIRE_BLOCKS = 54,
                 WIRE_KNOB = 55,
                 WIRE_TICK = 56,
                 WIRE_ACK = 57,
                 WIRE_REFUSE = 58,
                 WIRE_ORDER = 59,
                 WIRE_CONTROL = 60,
                 WIRE_DONE = 61,
                 WIRE_STAT = 63,
                 WIRE_WORKER = 64,
                 /* 65 to 68: every session; 70: tokenize; wire/session.h */
                 WIRE_SESSION_HELLO = 65,
                 WIRE_SESSION_ACK = 66,
                 WIRE_SESSION_PING = 67,
                 WIRE_SESSION_BYE = 68,
                 WIRE_CAPACITY = 69,
                 WIRE_PROMPT = 70,
};
#define WIRE_STORE_FIRST WIRE_KV_OPEN
#define WIRE_STORE_LAST WIRE_KV_NO
#define WIRE_SERVICE_FIRST WIRE_SUBMIT
#define WIRE_SERVICE_LAST WIRE_PROMPT

struct wire_bytes {
    const uint8_t *p;
    size_t n;
};

struct wire_str {
    const char *p; /* not NUL-terminated */
    size_t n;
};

/* Borrows s; NULL: an empty string. */
static inline struct wire_str wire_str_of(const char *s)
{
    return (struct wire_str){s, s ? strlen(s) : 0};
}

/* Unknown fields: n_pair key-value pairs as msgpack bytes, no key twice. */
struct wire_extra {
    struct wire_bytes raw;
    uint32_t n_pair;
};

struct wire_span { /* the work of one stage on a request */
    struct wire_str stage, host;
    uint32_t pid;
    uint64_t queued_ns, start_ns, end_ns; /* CLOCK_MONOTONIC of the host */
    uint64_t tokens, bytes;
    struct wire_extra extra;
};

struct wire_hello {
    uint32_t version;
    struct wire_str from; /* the program that writes the stream */
    bool has_vocab;
    struct wire_bytes vocab_fp; /* 32 */
    uint32_t vocab_n;
    bool has_kv;
    struct wire_bytes model_fp; /* 32 */
    struct wire_str kv_type, arith, layout;
    uint32_t n_layer, n_kv_head, head_dim;
    struct wire_extra vocab_extra, kv_extra; /* unknown fields of the two sections */
    struct wire_extra extra;
};

struct wire_bias {
    uint32_t id;
    float bias;
};

/* Sampling parameters. The decoder checks their ranges. */
struct wire_sampling {
    uint64_t seed;
    uint32_t max_tokens, min_tokens;
    float temperature; /* 0: greedy */
    uint32_t top_k;    /* 0: off */
    float top_p;       /* (0,1]; 0 keeps only the best token */
    float typical_p;   /* (0,1]; 1: off */
    float min_p;
    float repetition_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0: off */
    int32_t penalty_last_n; /* tokens that the penalties count: -1: all; 0: none; N: the newest N tokens of prompt and
                               answer together (engine/sample.h) */
    bool ignore_eos, echo;
    bool keep_stop;          /* the text includes the stop text, or the text of the stop id, that ended it */
    bool special_text;       /* the text includes the spelling of control tokens */
    int32_t logprobs;        /* -1: none; N: of the chosen token and the N best */
    int32_t prompt_logprobs; /* the same for the prompt, whose text only echo includes; with echo and logprobs the
                                greater of the two applies */
    const struct wire_str *stop;
    uint32_t n_stop;
    const uint32_t *stop_ids;
    uint32_t n_stop_id;
    const struct wire_bias *bias;
    uint32_t n_bias;
    const uint32_t *allowed; /* sampling is restricted to these; none: any id */
    uint32_t n_allowed;
    const uint32_t *bad_ids; /* forbidden sequences, concatenated: the last id of a sequence is not sampled if the
                                answer ends in the ids before it */
    uint32_t n_bad_id;
    const uint32_t *bad_lens; /* length of each sequence, at least 1; their sum is n_bad_id */
    uint32_t n_bad;
};

struct wire_req {   /* tok and open */
    uint64_t seq;   /* number in the input of the stream, from 0; (seq, index) identifies the request in its stream */
    uint32_t index; /* choice, 0 … n-1 */
    struct wire_str id;
    const uint32_t *ids;
    uint32_t n_id;
    struct wire_sampling s;
    struct wire_bytes digests; /* 32 × floor(n_id / 32) bytes, or empty */
    struct wire_bytes salt;
    int32_t priority;
    uint64_t born_ns; /* CLOCK_MONOTONIC of the host on which the request arrived, for TTFT on that host */
    uint64_t load_ns; /* the longest load time of a stage so far */
    const struct wire_span *span;
    uint32_t n_span;
    struct wire_extra extra;
};

struct wire_blk {
    uint64_t seq;
    uint32_t index;
    uint64_t block;          /* number of the block in its sequence */
    uint32_t layer, n_layer; /* layers layer … layer+n_layer-1 */
    uint32_t n_token;        /* 32, or fewer for the tail, which is packed by token */
    uint64_t sum;            /* XXH3-64 of the payload */
    uint64_t n_data;         /* bytes of payload: wire_read_data */
    struct wire_extra extra;
};

struct wire_top {
    uint32_t id;
    float logprob;
};

struct wire_logprob { /* of one position */
    uint32_t id;
    float logprob; /* NaN: none (the prompt's first token); -INFINITY is written as -FLT_MAX */
    const struct wire_top *top;
    uint32_t n_top;
    uint32_t rank; /* rank in the whole vocabulary, from 1, ties by id; 0: not given */
};

struct wire_kv { /* the prompt is computed; the first token of the answer */
    uint64_t seq;
    uint32_t index;
    uint32_t n_token; /* prompt tokens whose KV was sent */
    bool has_first;   /* false if max_tokens is 0 */
    struct wire_logprob first;
    const struct wire_logprob *prompt; /* with prompt_logprobs: one for each prompt token */
    uint32_t n_prompt;
    uint32_t cached; /* prompt tokens whose KV was cached */
    uint64_t load_ns;
    const struct wire_span *span;
    uint32_t n_span;
    struct wire_extra extra;
};

struct wire_out { /* a piece of an answer */
    uint64_t seq;
    uint32_t index;
    struct wire_str id;
    const uint32_t *ids;
    uint32_t n_id;
    struct wire_str text;          /* text that no later token can change; may be empty while ids are not */
    const struct wire_logprob *lp; /* with logprobs: one for each id */
    uint32_t n_lp;
    bool prompt;     /* ids, text and lp are those of the prompt */
    bool silent;     /* with prompt: not part of the answer, only lp was requested (prompt_logprobs without echo) */
    uint32_t cached; /* services: with the first token of an answer, prompt tokens whose KV was cached */
    uint32_t at;     /* services: position of the first id in the answer, to deduplicate tokens; 0: not given */
    struct wire_extra extra;
};

enum wire_reason { WIRE_STOP = 1, WIRE_LENGTH = 2, WIRE_CANCELLED = 3, WIRE_ERROR = 4 };

struct wire_end {
    uint64_t seq;
    uint32_t index;
    struct wire_str id;
    enum wire_reason reason;
    struct wire_str stop_text; /* the stop string that matched, or empty */
    bool has_stop_id;
    uint32_t stop_id;
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
    uint64_t load_ns, born_ns;
    uint64_t first_ns, last_ns; /* CLOCK_MONOTONIC of decode's host when the first and last token were known */
    const struct wire_span *span;
    uint32_t n_span;
    struct wire_extra extra;
};

struct wire_error { /* one request failed; the stream continues */
    uint64_t seq;
    uint32_t index;
    struct wire_str id;
    uint32_t code; /* err.h */
    struct wire_str text;
    struct wire_extra extra;
};

struct wire_bye {
    struct wire_str from;
    uint64_t n_ok, n_error; /* requests by outcome so far */
    struct wire_extra extra;
};

/* A request to tokenize as a service. what: "line"; text: one line of tokenize --jsonl. The response is one prompt
 * frame for each choice, in order, or one err frame, with the same seq; id applies if the line has none. */
struct wire_ask {
    struct wire_str what;
    uint64_t seq;
    struct wire_str id;
    struct wire_str text;
    const uint32_t *ids;
    uint32_t n_id;
    struct wire_extra extra;
};

#include "wire/sched.h"
#include "wire/session.h"
#include "wire/store.h"

struct wire_frame {
    enum wire_kind kind;
    union {
        struct wire_hello hello;
        struct wire_req req;
        struct wire_blk blk;
        struct wire_kv kv;
        struct wire_out out;
        struct wire_end end;
        struct wire_error error;
        struct wire_bye bye;
        struct wire_ask ask;
        struct wire_kv_open kv_open;
        struct wire_kv_arena kv_arena;
        struct wire_kv_lease kv_lease;
        struct wire_kv_seq kv_seq;
        struct wire_kv_credit kv_credit;
        struct wire_kv_slots kv_slots;
        struct wire_kv_publish kv_publish;
        struct wire_kv_handle kv_handle; /* hand, take */
        struct wire_kv_free kv_free;
        struct wire_kv_tag kv_tag; /* watch */
        struct wire_kv_stat kv_stat;
        struct wire_kv_event kv_event;
        struct wire_kv_no kv_no;
        struct wire_submit submit;
        struct wire_cancel cancel;
        struct wire_join join;
        struct wire_report report;
        struct wire_gone gone;
        struct wire_blocks blocks;
        struct wire_knob knob;
        struct wire_tick tick;
        struct wire_ack ack;
        struct wire_refuse refuse;
        struct wire_order order;
        struct wire_control control;
        struct wire_done done;
        struct wire_stat stat;
        struct wire_worker worker;
        struct wire_session_hello session_hello;
        struct wire_session_ack session_ack;
        struct wire_session_ping session_ping;
        struct wire_session_bye session_bye;
        struct wire_capacity capacity;
        struct wire_prompt prompt;
    };
};

const char *wire_kind_name(enum wire_kind k);
const char *wire_reason_name(enum wire_reason r);
void wire_sampling_default(struct wire_sampling *s); /* greedy, nothing on, max_tokens UINT32_MAX, logprobs -1 */

/* ---- bytes <-> structs, for messages and tests ---- */

struct wire_arena;                       /* memory of decoded frames; a reset frees all of them */
struct wire_arena *wire_arena_new(void); /* NULL: no memory */
void wire_arena_free(struct wire_arena *a);
void wire_arena_reset(struct wire_arena *a);

/* Decodes exactly one map of n bytes (of blk: without the bytes of the payload; the buffer ends with its bin header,
 * and n_data is the payload's length). ERR_PROTO names kind, field, limit and offset. Borrows from buf and arena. */
int wire_decode(struct err *e, struct wire_frame *f, struct wire_arena *a, const uint8_t *buf, size_t n);

/* Encodes a map (of blk: up to and with the bin header). *out: malloc'd. ERR_PROTO: a field exceeds its limits, so that
 * no program sends a frame that its receiver would refuse. Fields at their default are not written. */
int wire_encode(struct err *e, uint8_t **out, size_t *n, const struct wire_frame *f);
/* Appends the map with its length prefix to the *n bytes at *p, a malloc'd buffer of *cap bytes that grows as needed
 * (initially NULL, 0 and 0). After a failure *n is unchanged. */
int wire_encode_add(struct err *e, uint8_t **p, size_t *n, size_t *cap, const struct wire_frame *f);
#define WIRE_PREFIX_BYTES 5 /* length prefix of a frame: 0xce and a big endian uint32 */
/* *size: bytes of the frame at p with its prefix; 0: the n bytes are not yet a whole frame. ERR_PROTO: they do not
 * begin a frame, or a frame of more than max bytes without its prefix. */
int wire_frame_size(struct err *e, size_t *size, const uint8_t *p, size_t n, size_t max);
/* wire_decode of the frame at *p, with its length prefix; *p and *n advance to the next frame. */
int wire_decode_next(struct err *e, struct wire_frame *f, struct wire_arena *a, const uint8_t **p, size_t *n);

/* A deep copy of a request that outlives its frame. wire_req_free(NULL) is safe. */
int wire_req_copy(struct err *e, struct wire_req **out, const struct wire_req *r);
void wire_req_free(struct wire_req *r);

/* ---- streams ---- */

struct wire_reader;
/* Borrows fd; `name` ("stdin", copied) is for error texts. */
int wire_reader_new(struct err *e, struct wire_reader **out, int fd, const char *name);
void wire_reader_free(struct wire_reader *r);

/*
 * Reads one frame; blocks. *out is NULL at an end of file after `bye`, and at an end of file of an empty stream (which
 * wire_reader_seen_hello distinguishes). An end of file elsewhere is ERR_PROTO: "stdin: ended without bye: PROGRAM
 * failed or was killed", with the offset. Also ERR_PROTO: a stream that does not begin with hello, an unknown version,
 * a frame other than hello after bye. The next call skips a payload that was not read.
 */
int wire_read(struct err *e, struct wire_reader *r, struct wire_frame **out);
bool wire_reader_seen_hello(const struct wire_reader *r);
uint64_t wire_reader_offset(const struct wire_reader *r); /* bytes consumed */
/* Whether the whole head of a frame is buffered, so that wire_read does not wait for the writer. */
bool wire_reader_ready(const struct wire_reader *r);

/* Reads the payload of the last blk frame into dst; n must equal its n_data. Blocks. The caller compares wire_sum(dst)
 * with blk.sum. */
int wire_read_data(struct err *e, struct wire_reader *r, void *dst, uint64_t n);

struct wire_writer;
int wire_writer_new(struct err *e, struct wire_writer **out, int fd, const char *name);
void wire_writer_free(struct wire_writer *w);

/* Writes a whole frame; blocks. ERR_SYS: "stdout: the next stage has ended" after EPIPE; a full disk has its own text.
 * After a failed write every later one fails too. Not for blk: see wire_write_blk. */
int wire_write(struct err *e, struct wire_writer *w, const struct wire_frame *f);
/* The same for many small frames: buffers them until there are 64 KiB, until wire_flush, or until another write. */
int wire_write_later(struct err *e, struct wire_writer *w, const struct wire_frame *f);
int wire_flush(struct err *e, struct wire_writer *w);
/* Writes a frame that wire_encode made earlier; of blk followed by its payload. */
int wire_write_raw(struct err *e, struct wire_writer *w, const uint8_t *frame, size_t n);
/* Writes a blk frame and its payload; n_data is the sum of the lengths in iov. */
int wire_write_blk(struct err *e, struct wire_writer *w, const struct wire_blk *b, const struct iovec *iov, int n_iov);

uint64_t wire_sum(const void *p, size_t n); /* XXH3-64 */

/* ---- frames as JSON, for jq (cmd/frames) ---- */

/* One frame as one line of JSON (no newline); 64-bit numbers as decimal strings, digests in hex. The payload of blk:
 * with data and full in base64; with data only {"bytes":"N","sum":"N"}, the sum computed from data; without data
 * {"bytes":"N"}. *out: malloc'd. */
int wire_to_json(struct err *e, char **out, const struct wire_frame *f, const uint8_t *data, bool full);
/* The reverse. *data: malloc'd payload of a blk, otherwise NULL. The frame borrows from the arena. */
int wire_from_json(struct err *e, struct wire_frame *f, struct wire_arena *a, uint8_t **data, const char *line,
                   size_t n);

/* Reads all frames of a descriptor (borrowed), one line of JSON each; skips empty lines. frame: data is the payload of
 * a blk, otherwise NULL; where: "NAME: line N". bad: a line is not a frame, *e has the reason and the line; NULL: such
 * a line ends the reading with ERR_PROTO. A result other than 0 of either callback ends the reading. */
struct wire_lines {
    int (*frame)(struct err *e, void *arg, const struct wire_frame *f, const uint8_t *data, const char *where);
    int (*bad)(struct err *e, void *arg);
    void *arg;
};
int wire_read_lines(struct err *e, int fd, const char *name, const struct wire_lines *r);

/* The text of all kinds and fields with their types and limits, as in docs/protocol.md; its hash is tested. */
const char *wire_schema(void);

#endif
