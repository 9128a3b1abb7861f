/* Private to lib/request. */
#ifndef REQUEST_FIELDS_H
#define REQUEST_FIELDS_H

#include "request/ask.h"

/* Reads all fields of an object; `at` is the path of the object. */
int fields_read(struct err *e, struct ask *a, const struct ask_path *at, const json_t *o);
int field_id(struct err *e, struct ask *a, struct ask_path *at, const json_t *v);

/* ---- values of one type ---- */

int field_u32(struct err *e, uint32_t *out, const struct ask_path *at, const json_t *v, int64_t lo, int64_t hi);
int field_f32(struct err *e, float *out, const struct ask_path *at, const json_t *v, double lo, double hi);

/* ---- fields_list.c ---- */

int field_stop(struct err *e, struct ask *a, struct ask_path *at, const json_t *v);
/* Refuses stop texts that are too long together, with this code. */
int field_stop_check(struct err *e, int code, const char *name, const struct wire_str *texts, size_t n);
int field_stop_ids(struct err *e, struct ask *a, struct ask_path *at, const json_t *v);
int field_bad_words(struct err *e, struct ask *a, struct ask_path *at, const json_t *v);
int field_allowed_ids(struct err *e, struct ask *a, struct ask_path *at, const json_t *v);
int field_prefix_ids(struct err *e, struct ask *a, struct ask_path *at, const json_t *v);
int field_logit_bias(struct err *e, struct ask *a, struct ask_path *at, const json_t *v);

/* ---- fields_unsupported.c ---- */

int field_unsupported(struct err *e, struct ask *a, struct ask_path *at, const json_t *v);
int field_template(struct err *e, struct ask *a, struct ask_path *at, const json_t *v);
int field_template_args(struct err *e, struct ask *a, struct ask_path *at, const json_t *v);
int field_effort(struct err *e, struct ask *a, struct ask_path *at, const json_t *v);

/* ---- prompt.c ---- */

int prompt_read(struct err *e, struct ask *a, struct ask_path *at, const json_t *v);
int prompt_messages(struct err *e, struct ask *a, struct ask_path *at, const json_t *v);

const char *path_last(const struct ask_path *at);         /* the last name of a path; no field name contains a point */
size_t path_field(struct ask_path *at, const char *name); /* returns the length for path_back */
size_t path_index(struct ask_path *at, size_t i);
void path_back(struct ask_path *at, size_t n);

#endif
