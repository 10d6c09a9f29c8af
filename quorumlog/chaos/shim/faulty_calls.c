/* Stands before the C library of a process (LD_PRELOAD) and breaks its disk and its wall clock.
 *
 * What to do is told by a file of orders, which is mapped into memory: QUORUMLOG_ORDERS names it,
 * and shim/orders.py writes it. Only files below QUORUMLOG_ORDERS_ROOT are hit; without orders,
 * each call costs one read of memory. Which file a descriptor means is asked of /proc when it
 * matters. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { READS = 1, WRITES = 2, SYNCS = 4, NAMES = 8 };

/* The layout is that of shim/orders.py. */
struct orders {
    int64_t calls;    /* those that fail with EIO: bits of the enum above */
    int64_t room;     /* bytes that may still be written, then ENOSPC; below 0: any number */
    int64_t fsync_us; /* an fsync takes up to so much longer */
    int64_t wall_ns;  /* the wall clock is ahead by this */
    int64_t hit;      /* counted here: calls that failed or were made to wait */
    int64_t attached; /* set here: a process has loaded the library, and obeys */
};

static struct orders *orders;
static char root[PATH_MAX];
static size_t root_length;

#define LOAD(field) __atomic_load_n(&orders->field, __ATOMIC_RELAXED)
#define REAL(name, ...) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name); \
    return real(__VA_ARGS__)

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("QUORUMLOG_ORDERS"), *below = getenv("QUORUMLOG_ORDERS_ROOT");
    if (!file || !below || strlen(below) >= sizeof root) return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return;
    void *page = mmap(NULL, sizeof *orders, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (page == MAP_FAILED) return;
    root_length = strlen(below);
    memcpy(root, below, root_length + 1);
    orders = page;
    __atomic_store_n(&orders->attached, 1, __ATOMIC_RELEASE);
}

static int is_below(const char *path) {
    if (strncmp(path, root, root_length)) return 0;
    return path[root_length] == '/' || path[root_length] == '\0';
}

static int is_ours(int fd) {
    char name[32], path[PATH_MAX];
    int saved = errno;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, path, sizeof path - 1);
    errno = saved;
    if (length < 0) return 0;
    path[length] = '\0';
    return is_below(path);
}

static int fail(int error) {
    __atomic_fetch_add(&orders->hit, 1, __ATOMIC_RELAXED);
    errno = error;
    return -1;
}

/* Whether a call on this descriptor, or on this path, fails now with EIO. */
static int breaks(int64_t call, int fd) {
    return orders && (LOAD(calls) & call) && is_ours(fd);
}

static int breaks_at(int64_t call, const char *path) {
    return orders && (LOAD(calls) & call) && is_below(path);
}

static int is_full_at(const char *path) { return orders && LOAD(room) == 0 && is_below(path); }

/* How many of these bytes may be written; all of them unless the disk is to be full. */
static size_t take_room(int fd, size_t wanted) {
    if (!orders || LOAD(room) < 0 || !is_ours(fd)) return wanted;
    int64_t left = LOAD(room), taken;
    do {
        if (left < 0) return wanted;
        taken = (int64_t)wanted < left ? (int64_t)wanted : left;
    } while (!__atomic_compare_exchange_n(&orders->room, &left, left - taken, 0,
                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return (size_t)taken;
}

static size_t total(const struct iovec *parts, int count) {
    size_t sum = 0;
    for (int i = 0; i < count; i++) sum += parts[i].iov_len;
    return sum;
}

/* --- Writes: a full disk takes a part of the last one --- */

#define WRITE(name, parameters, bytes, call_whole, call_part) \
    ssize_t name parameters { \
        if (breaks(WRITES, fd)) return fail(EIO); \
        size_t wanted = (bytes), room = take_room(fd, wanted); \
        if (room < wanted) { \
            if (room == 0) return fail(ENOSPC); \
            __atomic_fetch_add(&orders->hit, 1, __ATOMIC_RELAXED); \
            return call_part; \
        } \
        REAL(name, call_whole); \
    }
#define ARGS(...) __VA_ARGS__

/* Of several parts, a full disk takes what fits of the first. */
static size_t of_first(const struct iovec *parts, size_t room) {
    return parts->iov_len < room ? parts->iov_len : room;
}

WRITE(write, (int fd, const void *data, size_t size), size, ARGS(fd, data, size),
      syscall(SYS_write, fd, data, room))
WRITE(pwrite, (int fd, const void *data, size_t size, off_t at), size, ARGS(fd, data, size, at),
      syscall(SYS_pwrite64, fd, data, room, at))
WRITE(pwrite64, (int fd, const void *data, size_t size, off64_t at), size,
      ARGS(fd, data, size, at), syscall(SYS_pwrite64, fd, data, room, at))
WRITE(writev, (int fd, const struct iovec *parts, int count), total(parts, count),
      ARGS(fd, parts, count), syscall(SYS_write, fd, parts->iov_base, of_first(parts, room)))

/* --- Reads --- */

#define READ(name, parameters, ...) \
    ssize_t name parameters { \
        if (breaks(READS, fd)) return fail(EIO); \
        REAL(name, __VA_ARGS__); \
    }

READ(read, (int fd, void *data, size_t size), fd, data, size)
READ(pread, (int fd, void *data, size_t size, off_t at), fd, data, size, at)
READ(pread64, (int fd, void *data, size_t size, off64_t at), fd, data, size, at)
READ(preadv, (int fd, const struct iovec *parts, int count, off_t at), fd, parts, count, at)
READ(preadv64, (int fd, const struct iovec *parts, int count, off64_t at), fd, parts, count, at)
READ(preadv2, (int fd, const struct iovec *parts, int count, off_t at, int flags), fd, parts,
     count, at, flags)
READ(preadv64v2, (int fd, const struct iovec *parts, int count, off64_t at, int flags), fd, parts,
     count, at, flags)

/* --- What makes things durable --- */

static int sync_fails(int fd) {
    if (breaks(SYNCS, fd)) return fail(EIO);
    int64_t longest_us = orders ? LOAD(fsync_us) : 0;
    if (longest_us > 0 && is_ours(fd)) {
        static __thread unsigned int chance = 1;
        int64_t us = longest_us * (rand_r(&chance) % 1000 + 1) / 1000;
        struct timespec wait = {us / 1000000, us % 1000000 * 1000};
        __atomic_fetch_add(&orders->hit, 1, __ATOMIC_RELAXED);
        nanosleep(&wait, NULL);
    }
    return 0;
}

int fsync(int fd) {
    if (sync_fails(fd)) return -1;
    REAL(fsync, fd);
}

int fdatasync(int fd) {
    if (sync_fails(fd)) return -1;
    REAL(fdatasync, fd);
}

/* --- Names and sizes --- */

#define CREATES(flags) ((flags) & O_CREAT)
#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list list; \
        va_start(list, flags); \
        mode_t mode = CREATES(flags) ? va_arg(list, mode_t) : 0; \
        va_end(list); \
        if (breaks_at(NAMES, path)) return fail(EIO); \
        if (CREATES(flags) && is_full_at(path) && access(path, F_OK)) return fail(ENOSPC); \
        REAL(name, path, flags, mode); \
    }

OPEN(open)
OPEN(open64)

int mkdir(const char *path, mode_t mode) {
    if (breaks_at(NAMES, path)) return fail(EIO);
    if (is_full_at(path)) return fail(ENOSPC);
    REAL(mkdir, path, mode);
}

int rename(const char *from, const char *to) {
    if (breaks_at(NAMES, from)) return fail(EIO);
    REAL(rename, from, to);
}

int unlink(const char *path) {
    if (breaks_at(NAMES, path)) return fail(EIO);
    REAL(unlink, path);
}

int ftruncate(int fd, off_t size) {
    if (breaks(WRITES, fd)) return fail(EIO);
    REAL(ftruncate, fd, size);
}

int ftruncate64(int fd, off64_t size) {
    if (breaks(WRITES, fd)) return fail(EIO);
    REAL(ftruncate64, fd, size);
}

/* --- The wall clock --- */

static int64_t ahead_ns(void) { return orders ? LOAD(wall_ns) : 0; }

static int real_clock(clockid_t clock, struct timespec *now) {
    static __typeof__(clock_gettime) *real;
    if (!real) real = (__typeof__(clock_gettime) *)dlsym(RTLD_NEXT, "clock_gettime");
    return real(clock, now);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int outcome = real_clock(clock, now);
    int64_t ahead = ahead_ns();
    if (outcome || !ahead || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return outcome;
    int64_t wall = now->tv_sec * INT64_C(1000000000) + now->tv_nsec + ahead;
    now->tv_sec = wall / INT64_C(1000000000);
    now->tv_nsec = wall % INT64_C(1000000000);
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec wall;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &wall)) return -1;
    now->tv_sec = wall.tv_sec;
    now->tv_usec = wall.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec wall;
    if (clock_gettime(CLOCK_REALTIME, &wall)) return -1;
    if (where) *where = wall.tv_sec;
    return wall.tv_sec;
}
