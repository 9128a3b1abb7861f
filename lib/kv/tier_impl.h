/*
 * Private to lib/kv: the thread that reads and writes the file of a tier. It knows offsets and bytes, and nothing of
 * what is where: the index is the caller's (tier.c), so a disk that does not answer keeps nobody waiting there.
 */
#ifndef KV_TIER_IMPL_H
#define KV_TIER_IMPL_H

#include <sys/types.h>

#include "base/list.h"
#include "kv/tier.h"

#define TIER_PAGE 4096 /* of the head of the file, and before the bytes of each record */

enum disk_what { DISK_READ = 1, DISK_WRITE, DISK_ERASE };

struct disk_job { /* owned by whoever has it: the caller, then the thread, then the caller again */
    struct list node;
    enum disk_what what;
    uint32_t rec;
    uint64_t stamp; /* of the record when the job was made: another one by now means it was given away */
    off_t at;       /* of the record in the file */
    struct kv_tier_block b;
    uint8_t head[TIER_PAGE]; /* written before the bytes */
    uint8_t *bytes;          /* [data_bytes] */
    bool whole;              /* done: all was read, and is what its sum says; all was written */
    int error;               /* errno of a write that failed */
};

struct disk;

/* fd is borrowed. The thread takes no signals. */
int disk_open(struct err *e, struct disk **out, int fd, size_t data_bytes);
/* Ends the thread; false where it does not come back from the disk in time: then it and the file are left to it. */
bool disk_close(struct disk *d, int timeout_ms);
void disk_job_free(struct disk_job *j);

/* Takes a job. Reads come before writes, each in order. */
void disk_ask(struct disk *d, struct disk_job *j);
/* Puts a job that needs no disk among those that are done. */
void disk_answer(struct disk *d, struct disk_job *j);
struct disk_job *disk_done(struct disk *d); /* the next that is done; NULL: none */
int disk_fd(const struct disk *d);          /* readable while there is one */
/* Waits until there is one; false: none in time, or nothing was asked for. */
bool disk_wait(struct disk *d, int timeout_ms);

#endif
