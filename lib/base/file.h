/* Files. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Reads n bytes at an offset, in as many calls as the kernel needs. False: an error (errno), or the file ends before.
 */
bool file_read_at(int fd, void *p, size_t n, off_t at);

#endif
