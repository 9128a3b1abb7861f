/* Files. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "err/err.h"

/* Reads n bytes at an offset, in as many calls as the kernel needs. False: an error (errno), or the file ends before.
 */
bool file_read_at(int fd, void *p, size_t n, off_t at);

/* What other users than the owner of a file may do: read and change it, only read it, neither. */
enum file_access { FILE_ANY, FILE_TRUSTED, FILE_SECRET };

/*
 * Reads a regular file of at most max bytes whole into memory from malloc, with a zero byte after its end, which the
 * caller frees by file_forget. ERR_NO: another kind of file, a longer one, one that cannot be read, or one that other
 * users can access more than `access` permits, among them its owner: a secret belongs to this user or to root. Owner
 * and mode of files below $CREDENTIALS_DIRECTORY are those of the service manager, so they are not checked. what: for
 * errors, like "private key".
 */
int file_load(struct err *e, uint8_t **out, size_t *n, const char *path, size_t max, const char *what,
              enum file_access access);
void file_forget(uint8_t *p, size_t n); /* overwrites the n bytes and frees them; NULL is allowed */

#endif
