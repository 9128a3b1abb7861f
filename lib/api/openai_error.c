/* Error objects of the OpenAI API in vLLM's format. */
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

void openai_error_write(struct str *w, int status, const char *param, const char *text)
{
    LIT(w, "{\"error\":{\"message\":");
    json_write_string(w, text, strlen(text));
    LIT(w, ",\"type\":\"");
    str_add_text(w, error_type(status));
    LIT(w, "\",\"param\":");
    if (param && *param)
        json_write_string(w, param, strlen(param));
    else
        LIT(w, "null");
    LIT(w, ",\"code\":");
    json_write_i64(w, status);
    LIT(w, "}}");
}
