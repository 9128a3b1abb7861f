/* Private to lib/cli. */
#ifndef CLI_NUMBER_H
#define CLI_NUMBER_H

#include "cli/cli.h"

int cli_i64(struct err *e, const char *what, const char *s, int64_t *out, int64_t lo, int64_t hi);

#endif
