/*
 * The Ollama surface inside: a request becomes a line of the gateway (request/ask.h), frames become its answer. Formats
 * of https://github.com/ollama/ollama/blob/main/docs/api.md, with the fields in the order that Ollama writes them. What
 * is declared here is pure, for tests; ollama.c has the routes and ollama_call.c runs the calls.
 */
#ifndef API_OLLAMA_H
#define API_OLLAMA_H

#include "api/api.h"
#include "api/json_write.h"

/* The version of Ollama whose API this follows: clients compare it before they use what is newer. */
#define OLLAMA_VERSION "0.12.11"

#define OLLAMA_TOP_MAX 20 /* top_logprobs, as Ollama limits them */

/* ---- requests: ollama_ask.c, ollama_options.c, ollama_context.c ---- */

enum ollama_kind {
    OLLAMA_RUN = 1,
    OLLAMA_LOAD = 2,   /* nothing to answer: asks whether the model is there */
    OLLAMA_UNLOAD = 3, /* the same with keep_alive 0 */
};

struct ollama_ask {
    enum ollama_kind kind;
    bool chat, stream, raw, logprobs;
    json_t *line; /* OLLAMA_RUN; owned */
};

/* The body of /api/generate or, with `chat`, of /api/chat, its model being checked already. ERR_NO names the field. */
int ollama_read(struct err *e, struct ollama_ask *out, const struct api_model *m, const json_t *body, bool chat);
void ollama_ask_free(struct ollama_ask *a);

/* The text of a field; absent and null are "". ERR_NO where it is no text. */
int ollama_text(struct err *e, const char **out, size_t *n, const json_t *o, const char *key);
int ollama_bool(struct err *e, bool *out, const json_t *o, const char *key); /* *out stays where it is absent or null */
int ollama_wrong(struct err *e, const char *path, const char *what, const json_t *got);
/* An option or field without effect here: its name goes on, so that tokenize says it once. */
int ollama_pass(struct err *e, json_t *line, const char *key);

/* Sampling of `options`, NULL for the defaults, as fields of the line. */
int ollama_options(struct err *e, json_t *line, const struct api_model *m, const json_t *options);

/* A prompt behind an earlier conversation: its ids, closed as the chat template closes an answer, then the new turn
 * without what only begins a conversation. *out: a new list of ids. `system`: n_system 0 for none. */
int ollama_continue(struct err *e, json_t **out, const struct api_model *m, const json_t *context, const char *system,
                    size_t n_system, const char *prompt, size_t n_prompt);

/* ---- answers: ollama_answer.c ---- */

/* Nanoseconds, of a monotonic clock; load + prompt + eval <= total. */
struct ollama_times {
    uint64_t total_ns, load_ns, prompt_ns, eval_ns;
    uint32_t n_prompt, n_cached, n_eval;
};
/* w: NULL for an answer that asked nothing of the model. `first_ns` 0: no token. */
void ollama_times(struct ollama_times *t, const struct wire_end *w, uint64_t arrived_ns, uint64_t first_ns,
                  uint64_t now_ns);

struct ollama_answer; /* of one request */

int ollama_answer_new(struct err *e, struct ollama_answer **out, const struct ollama_ask *q, const char *model,
                      const struct text *vocab);
void ollama_answer_free(struct ollama_answer *a);
/* Copies the ids of the prompt if the answer returns `context`. */
int ollama_answer_prompt(struct err *e, struct ollama_answer *a, const struct wire_prompt *q);
/* A piece. *line: a line of NDJSON, borrowed until the next call; *n 0 where there is none: the answer is not streamed,
 * or nothing is to be shown yet. */
int ollama_answer_piece(struct err *e, struct ollama_answer *a, const char **line, size_t *n, const struct wire_out *o);
/* The last object, with a line feed at its end where the answer is streamed. reason: "stop", "length", "load", … */
int ollama_answer_last(struct err *e, struct ollama_answer *a, const char **line, size_t *n, const char *reason,
                       const struct ollama_times *t);

#define OLLAMA_TIME_BYTES 40
/* RFC 3339 with nanoseconds, UTC: "2026-01-31T08:15:30.123456789Z". Returns its length. */
size_t ollama_time(char out[OLLAMA_TIME_BYTES], int64_t s, uint32_t ns);

/* ---- what is served: ollama_model.c; new references, NULL where memory is short ---- */

json_t *ollama_show(const struct api_model *m, bool verbose);
json_t *ollama_tags(const struct api_model *m, const char *const *name, size_t n_name);
/* `bytes`, `context`: of what workers hold; now_s: Unix time. */
json_t *ollama_ps(const struct api_model *m, const char *const *name, size_t n_name, int64_t now_s);
void ollama_human(char *out, size_t room, uint64_t n_param); /* "134.52M" */

#endif
