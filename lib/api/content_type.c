/* Content types of requests. */
#include <string.h>
#include <strings.h>

#include "api/api.h"

bool api_is_json(const char *type)
{
    size_t n = type ? strcspn(type, "; ") : 0;
    return (n == 16 && !strncasecmp(type, "application/json", n)) ||
           (n > 17 && !strncasecmp(type, "application/", 12) && !strncasecmp(type + n - 5, "+json", 5));
}
