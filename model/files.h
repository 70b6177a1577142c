/* Plain file work that every reader and writer of weights shares: regular files only, whole reads and writes, names that appear only when
 * complete. */
#ifndef HEARTH_MODEL_FILES_H
#define HEARTH_MODEL_FILES_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "common/error.h"

/* Opens for reading; a FIFO or a device in the place of a file is refused and never waited for. follow_links 0: a symbolic link is refused
 * too. The caller closes *fd; -1 on failure. */
enum status file_open_regular(int *fd, const char *path, int follow_links, struct stat *st, struct error *err);

/* All n bytes at the offset, or an error that names path. */
enum status file_read_at(int fd, void *bytes, uint64_t n, uint64_t offset, const char *path, struct error *err);
enum status file_write_at(int fd, const void *bytes, uint64_t n, uint64_t offset, const char *path, struct error *err);

/* fsync, close (in any case), rename from path_partial to path, fsync of the directory. On failure the partial file is gone. */
enum status file_publish(int *fd, const char *path_partial, const char *path, const char *dir, struct error *err);

/* Writes a whole file so that it is either there in full or not at all. Processes and threads that write the same name at once take turns: the last one's bytes
 * stay. STATUS_BUSY: a writer before us did not end. */
enum status file_write_atomic(const char *dir, const char *name, const void *bytes, size_t n, struct error *err);

enum status directory_sync(const char *dir, struct error *err);

/* A name without a path: not empty, no slash, no leading dot, at most 255 bytes. */
int file_name_is_plain(const char *name);

#endif
