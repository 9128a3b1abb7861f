/* Private to the routes of the Ollama dialect. */
#ifndef API_OLLAMA_IMPL_H
#define API_OLLAMA_IMPL_H

#include "api/json_write.h"
#include "api/ollama.h"

#define OLLAMA_JSON "application/json; charset=utf-8"

/* The body as an object (new reference) whose `model`, formerly `name`, is served; NULL: an error was sent. *model is
 * borrowed from it. */
json_t *ollama_body(struct api *a, struct http_request *r, const char **model);
void ollama_error_body(struct str *w, const char *text); /* {"error":"…"} */

void ollama_generate_route(struct api *a, struct http_request *r);
void ollama_generate_prepare(struct api_parsed *p, const struct api_model *m);
void ollama_chat_prepare(struct api_parsed *p, const struct api_model *m);
void ollama_chat_route(struct api *a, struct http_request *r);

#endif
