#!/usr/bin/env bats
# kvstore with a file tier: restarts, a damaged file, a full disk, a blocked one.

load kvstore_client

# six_blocks_on_disk: runs a store with a file until it has six blocks of prompt 1, and ends it
six_blocks_on_disk() {
    start --disk kv.disk --disk-size 10M
    client a
    command_to a lease 1 6
    command_to a credit 6
    command_to a publish 6
    [ "$(command_to a release)" = ok ]
    kill -9 $a_pid
    kill -TERM "$store_pid"
    wait "$store_pid"
}

@test "blocks survive a restart in the file; a damaged one is dropped and computed again" {
    six_blocks_on_disk
    [ ! -e kv.sock ]
    start --disk kv.disk --disk-size 10M
    client b
    [[ $(command_to b nowait 1 6) == *"blocks 6 tail 0" ]] # answered when they are read
    [ "$(command_to b check)" = ok ]
    kill -9 $b_pid "$store_pid"
    # The fourth record: its bytes begin a page after its header.
    printf X | dd of=kv.disk bs=1 seek=$((4096 + 3 * (4096 + 12288) + 4096 + 300)) conv=notrunc status=none
    start --disk kv.disk --disk-size 10M
    client c
    [[ $(command_to c lease 1 6) == *"blocks 0 tail 0 pending" ]]
    [[ $(command_to c news 5000) == *"blocks 3 tail 0" ]]
    [ "$(command_to c check)" = ok ]
    grep -q "record 3 is torn or damaged: dropped" store.err
    [[ $(command_to c stat) == *"disk 5 bad 1 sound" ]]
    run kvstore "${kv[@]}" --listen unix:other.sock --disk kv.disk
    [ "$status" -eq 1 ]
    [[ $output == *"another kvstore uses it"* ]]
    kill -9 "$store_pid"
    wait "$store_pid" || true
    run kvstore "${kv[@]}" --arithmetic zz1 --listen unix:other.sock --disk kv.disk
    [ "$status" -eq 2 ]
    [[ $output == *"kv.disk has KV of another kind"*"arithmetic"* ]]
}

@test "a full disk is logged once, and blocks in memory stay" {
    # A disk of 13 pages: the header of the file, and three records of 4.
    mkdir small
    mount -t tmpfs -o size=52k small small || skip "mounting needs root"
    start --disk small/kv.disk
    client a
    command_to a lease 1 8
    command_to a credit 8
    command_to a publish 8
    sleep 0.3
    [ "$(grep -c 'kv.disk: the disk is full with 3 blocks' store.err)" -eq 1 ]
    [ "$(command_to a check)" = ok ]
    [ "$(command_to a release)" = ok ]
    [[ $(command_to a lease 1 8) == *"blocks 8 tail 0" ]]
}

@test "a blocked disk delays only requests that need it, by at most --disk-ms" {
    # A disk that blocks while the file `still` exists; files of /proc, whose size is 0, are on no disk.
    cat > still.c << 'C'
#define _GNU_SOURCE
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
static void wait_for_it(int fd)
{ struct stat st; while (!fstat(fd, &st) && st.st_size && !access("still", F_OK)) usleep(1000); }
ssize_t pread(int fd, void *p, size_t n, off_t at) { wait_for_it(fd); return syscall(SYS_pread64, fd, p, n, at); }
ssize_t __pread_chk(int fd, void *p, size_t n, off_t at, size_t room) /* what pread is with _FORTIFY_SOURCE */
{ (void)room; return pread(fd, p, n, at); }
ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at)
{ wait_for_it(fd); return syscall(SYS_pwritev, fd, v, n, at, 0); }
C
    ${CC:-cc} -shared -fPIC -o still.so still.c
    six_blocks_on_disk
    export LD_PRELOAD="$PWD/still.so" ASAN_OPTIONS="verify_asan_link_order=0:$ASAN_OPTIONS"
    start --disk kv.disk --disk-size 10M --disk-ms 1500
    unset LD_PRELOAD
    client b
    client c
    client d
    [[ $(command_to c nowait 7 3) == *"blocks 2 tail 0" ]] # all prompts begin with the same two
    touch still
    begin=$(date +%s%N)
    [[ $(command_to b lease 1 6) == *"blocks 2 tail 0 pending" ]]
    echo nowait 1 6 >&"$d_in" # answered when it is decided
    command_to c credit 5
    [ "$(command_to c publish 1)" = "published 1" ]
    [ "$(command_to c check)" = ok ]
    [ "$(command_to c release)" = ok ]
    [[ $(command_to c lease 8 4) == *"blocks 2 tail 0" ]]
    [ "$(command_to c publish 2)" = "published 2" ]
    [ "$(command_to c release)" = ok ]
    [ $(($(date +%s%N) - begin)) -lt 1000000000 ]
    [[ $(command_to b news 5000) == *"blocks 2 tail 0" ]]
    [[ $(answer d) == *"blocks 2 tail 0" ]]
    [ $(($(date +%s%N) - begin)) -gt 1400000000 ]
    grep -q "did not read a block within 1500 ms" store.err
    [ "$(command_to b release)" = ok ]
    [[ $(command_to b nowait 1 6) == *"blocks 2 tail 0" ]] # at once: nothing is asked of it now
    [ "$(command_to b release)" = ok ]
    rm still
    for _ in 1 2 3 4 5 6 7 8 9 10; do grep -q "completed a read" store.err && break || sleep 0.1; done
    [[ $(command_to b nowait 1 6) == *"blocks 6 tail 0" ]]
    [ "$(command_to b check)" = ok ]
    # Shutdown with a blocked disk does not wait for ever.

    command_to b release
    command_to d release
    touch still
    command_to c lease 9 3
    command_to c publish 1
    command_to c release
    kill -TERM "$store_pid"
    for _ in $(seq 50); do kill -0 "$store_pid" 2>/dev/null && sleep 0.1 || break; done
    run kill -0 "$store_pid"
    [ "$status" -ne 0 ]
}
