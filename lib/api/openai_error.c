/* Error objects of the OpenAI API in vLLM's format; a request that exceeds the context length has OpenAI's type and
 * code, by which clients choose another model or shorten the chat. */
#include <string.h>

#include "api/openai.h"

static const char *error_type(int status)
{
    static const struct {
        int status;
        const char *type;
    } types[] = {
        {401, "AuthenticationError"},     {403, "PermissionDeniedError"}, {404, "NotFoundError"},
        {405, "MethodNotAllowedError"},   {408, "RequestTimeoutError"},   {413, "RequestTooLargeError"},
        {429, "RateLimitError"},          {500, "InternalServerError"},   {501, "NotImplementedError"},
        {503, "ServiceUnavailableError"}, {504, "TimeoutError"},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == status)
            return types[i].type;
    return status < 500 ? "BadRequestError" : "InternalServerError";
}

void openai_error_write(struct str *w, const struct openai_refusal *no)
{
    const char *type = no->context ? "invalid_request_error" : error_type(no->status);
    LIT(w, "{\"error\":{\"message\":");
    json_write_string(w, no->text, strlen(no->text));
    LIT(w, ",\"type\":\"");
    str_add_text(w, type);
    LIT(w, "\",\"param\":");
    if (*no->param)
        json_write_string(w, no->param, strlen(no->param));
    else
        LIT(w, "null");
    LIT(w, ",\"code\":");
    if (no->context)
        LIT(w, "\"context_length_exceeded\"");
    else
        json_write_i64(w, no->status);
    LIT(w, "}}");
}
