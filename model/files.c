#include "model/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "common/memory.h"

enum {
    PIECE_BYTES = 8 << 20, /* one pread or pwrite: large enough for the disk, small enough to be interrupted between two */
    LOCK_PAUSE_NS = 2000000,
    LOCK_WAIT_S = 30, /* a writer needs some milliseconds */
    LOCK_TRIES = LOCK_WAIT_S * (1000000000 / LOCK_PAUSE_NS),
};

enum status file_open_regular(int *fd, const char *path, int follow_links, struct stat *st, struct error *err)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (follow_links ? 0 : O_NOFOLLOW));
    if (*fd < 0 && errno == ELOOP)
        return error_set(err, STATUS_INVALID, "%s: is a symbolic link, expected a regular file", path);
    if (*fd < 0)
        return error_errno(err, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "%s: cannot open", path);
    if (!fstat(*fd, st) && S_ISREG(st->st_mode))
        return STATUS_OK;
    close(*fd);
    *fd = -1;
    return error_set(err, STATUS_INVALID, "%s: not a regular file", path);
}

enum status file_read_at(int fd, void *bytes, uint64_t n, uint64_t offset, const char *path, struct error *err)
{
    for (uint64_t done = 0; done < n;) {
        size_t piece = n - done < PIECE_BYTES ? (size_t)(n - done) : PIECE_BYTES;
        ssize_t got = pread(fd, (char *)bytes + done, piece, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_errno(err, STATUS_IO, "%s: cannot read at byte %llu", path, (unsigned long long)(offset + done));
        if (got == 0)
            return error_set(err, STATUS_CORRUPT, "%s: ends at byte %llu, expected %llu bytes more", path,
                             (unsigned long long)(offset + done), (unsigned long long)(n - done));
        done += (uint64_t)got;
    }
    return STATUS_OK;
}

enum status file_write_at(int fd, const void *bytes, uint64_t n, uint64_t offset, const char *path, struct error *err)
{
    for (uint64_t done = 0; done < n;) {
        size_t piece = n - done < PIECE_BYTES ? (size_t)(n - done) : PIECE_BYTES;
        ssize_t put = pwrite(fd, (const char *)bytes + done, piece, (off_t)(offset + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return error_errno(err, STATUS_IO, "%s: cannot write at byte %llu", path, (unsigned long long)(offset + done));
        done += (uint64_t)put;
    }
    return STATUS_OK;
}

enum status directory_sync(const char *dir, struct error *err)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return error_errno(err, STATUS_IO, "%s: cannot open the directory", dir);
    enum status status = fsync(fd) ? error_errno(err, STATUS_IO, "%s: cannot sync the directory", dir) : STATUS_OK;
    close(fd);
    return status;
}

enum status file_publish(int *fd, const char *path_partial, const char *path, const char *dir, struct error *err)
{
    enum status status = STATUS_OK;
    if (fsync(*fd))
        status = error_errno(err, STATUS_IO, "%s: cannot sync", path_partial);
    if (close(*fd) && !status)
        status = error_errno(err, STATUS_IO, "%s: cannot close", path_partial);
    *fd = -1;
    if (!status && rename(path_partial, path))
        status = error_errno(err, STATUS_IO, "%s: cannot rename to %s", path_partial, path);
    if (status) {
        unlink(path_partial);
        return status;
    }
    return directory_sync(dir, err);
}

/* 0: the one who held the lock before us has given the file its name, and the partial one is another or gone. */
static int is_still(int fd, const char *partial)
{
    struct stat ours, there;
    return !fstat(fd, &ours) && !lstat(partial, &there) && ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

/* One name and a lock, not a name for each writer: those of writers that died would pile up, and whether a writer of another container or host lives
 * cannot be told from its number. The system ends the lock of who dies, and what it left is written over. A file system without locks gives none. */
static enum status open_partial(int *fd, const char *partial, struct error *err)
{
    const struct timespec pause = {0, LOCK_PAUSE_NS};
    for (int tries = 0; tries < LOCK_TRIES; tries++) {
        *fd = open(partial, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
        if (*fd < 0)
            return error_errno(err, STATUS_IO, "%s: cannot create", partial);
        int is_taken = flock(*fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
        if (!is_taken && is_still(*fd, partial)) {
            if (!ftruncate(*fd, 0))
                return STATUS_OK;
            enum status status = error_errno(err, STATUS_IO, "%s: cannot empty", partial);
            close(*fd);
            return status;
        }
        close(*fd);
        if (is_taken)
            nanosleep(&pause, NULL);
    }
    return error_set(err, STATUS_BUSY, "%s: another process has been writing it for %d s; is it stopped?", partial, LOCK_WAIT_S);
}

enum status file_write_atomic(const char *dir, const char *name, const void *bytes, size_t n, struct error *err)
{
    char *path = xasprintf("%s/%s", dir, name), *partial = xasprintf("%s.partial", path);
    int fd;
    enum status status = open_partial(&fd, partial, err);
    if (!status) {
        int lock = dup(fd); /* keeps the lock until the file has its name: file_publish closes before it renames */
        status = lock < 0 ? error_errno(err, STATUS_IO, "%s: cannot keep its lock", partial) : file_write_at(fd, bytes, n, 0, partial, err);
        if (status) {
            unlink(partial);
            close(fd);
        } else {
            status = file_publish(&fd, partial, path, dir, err);
        }
        if (lock >= 0)
            close(lock);
    }
    free(partial);
    free(path);
    return status;
}

int file_name_is_plain(const char *name)
{
    return name && *name && *name != '.' && strlen(name) <= 255 && !strchr(name, '/');
}
