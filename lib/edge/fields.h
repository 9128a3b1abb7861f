/* Private to lib/edge. */
#ifndef EDGE_FIELDS_H
#define EDGE_FIELDS_H

#include "edge/ask.h"

/* Reads all fields of an object; `at` is the path before their names. */
int fields_read(struct err *e, struct ask *a, const struct ask_path *at, const json_t *o);
int field_id(struct err *e, struct ask *a, struct ask_path *at, const json_t *v);

int prompt_read(struct err *e, struct ask *a, struct ask_path *at, const json_t *v);
int prompt_messages(struct err *e, struct ask *a, struct ask_path *at, const json_t *v);

size_t path_field(struct ask_path *at, const char *name); /* returns the length to go back to */
size_t path_index(struct ask_path *at, size_t i);
void path_back(struct ask_path *at, size_t n);

#endif
