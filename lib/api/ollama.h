/*
 * The Ollama dialect: from a body to a request to the gateway (request/ask.h), from frames to the response. Formats of
 * https://github.com/ollama/ollama/blob/main/docs/api.md, with fields in Ollama's order. The functions declared here
 * have no side effects, for tests; ollama.c has the routes, and ollama_generate.c runs generations.
 */
#ifndef API_OLLAMA_H
#define API_OLLAMA_H

#include "api/api.h"
#include "api/json_write.h"

/* The version of Ollama whose API is implemented; clients compare it before they use newer features. */
#define OLLAMA_VERSION "0.12.11"

#define OLLAMA_TOP_MAX 20 /* Ollama's limit of top_logprobs */

/* ---- requests: ollama_request.c, ollama_options.c, ollama_context.c ---- */

enum ollama_kind {
    OLLAMA_RUN = 1,
    OLLAMA_LOAD = 2,   /* no prompt: loads the model, here a check whether it is served */
    OLLAMA_UNLOAD = 3, /* the same with keep_alive 0 */
};

struct ollama_request {
    enum ollama_kind kind;
    bool chat, stream, raw, logprobs;
    json_t *line; /* OLLAMA_RUN; owned */
};

/* Reads the body of /api/generate or, with `chat`, of /api/chat; its model is checked already. ERR_NO: the text names
 * the field. */
int ollama_request_read(struct err *e, struct ollama_request *out, const struct api_model *m, const json_t *body,
                        bool chat);
void ollama_request_free(struct ollama_request *a);

/* A string field, borrowed; "" if absent or null. ERR_NO: not a string. */
int ollama_text(struct err *e, const char **out, size_t *n, const json_t *o, const char *key);
int ollama_bool(struct err *e, bool *out, const json_t *o, const char *key); /* *out is unchanged if absent or null */
int ollama_wrong(struct err *e, const char *path, const char *what, const json_t *got);
/* Passes an option or field without effect on, so that tokenize logs its name once. */
int ollama_pass(struct err *e, json_t *line, const char *key);

/* Adds the sampling options, or Ollama's defaults if `options` is NULL, as fields of the line. */
int ollama_options(struct err *e, json_t *line, const struct api_model *m, const json_t *options);

/* Continues a conversation: its ids, the chat template's end of an answer, then the new turn without the tokens that
 * the template puts only at the start of a conversation. *out: a new list of ids. n_system 0: no system message. */
int ollama_continue(struct err *e, json_t **out, const struct api_model *m, const json_t *context, const char *system,
                    size_t n_system, const char *prompt, size_t n_prompt);

/* ---- answers: ollama_answer.c ---- */

/* Durations in nanoseconds; load + prompt + eval <= total. */
struct ollama_times {
    uint64_t total_ns, load_ns, prompt_ns, eval_ns;
    uint32_t n_prompt, n_cached, n_eval;
};
/* w: NULL if nothing was generated. `first_ns` 0: no token. */
void ollama_times(struct ollama_times *t, const struct wire_end *w, uint64_t arrived_ns, uint64_t first_ns,
                  uint64_t now_ns);

struct ollama_answer; /* of one request */

int ollama_answer_new(struct err *e, struct ollama_answer **out, const struct ollama_request *q, const char *model,
                      const struct text *vocab);
void ollama_answer_free(struct ollama_answer *a);
size_t ollama_answer_bytes(const struct ollama_answer *a); /* that it holds until its end */
/* Stores the ids of the prompt if the response returns `context`. */
int ollama_answer_prompt(struct err *e, struct ollama_answer *a, const struct wire_prompt *q);
/* Adds tokens. *line: a line of NDJSON, borrowed until the next call; *n 0: none, because the response is not streamed
 * or the text is held back. */
int ollama_answer_piece(struct err *e, struct ollama_answer *a, const char **line, size_t *n, const struct wire_out *o);
/* The last object; ends with a line feed if streamed. reason: "stop", "length", "load", … */
int ollama_answer_last(struct err *e, struct ollama_answer *a, const char **line, size_t *n, const char *reason,
                       const struct ollama_times *t);

#define OLLAMA_TIME_BYTES 40
/* RFC 3339 with nanoseconds, UTC: "2026-01-31T08:15:30.123456789Z". Returns its length. */
size_t ollama_time(char out[OLLAMA_TIME_BYTES], int64_t s, uint32_t ns);

/* ---- model info: ollama_model.c; new references, NULL: no memory ---- */

json_t *ollama_show(const struct api_model *m, bool verbose);
json_t *ollama_tags(const struct api_model *m, const char *const *name, size_t n_name);
/* now_s: Unix time. */
json_t *ollama_ps(const struct api_model *m, const char *const *name, size_t n_name, int64_t now_s);
void ollama_human(char *out, size_t room, uint64_t n_param); /* "134.52M" */

#endif
