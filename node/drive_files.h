/* The files that a machine reads all day, opened for measuring: where they lie, whether they can be read past the page cache, and the
 * extents in them. Reads no weights. */
#ifndef HEARTH_NODE_DRIVE_FILES_H
#define HEARTH_NODE_DRIVE_FILES_H

#include <stdint.h>

#include "common/error.h"
#include "node/drive_rate.h"
#include "node/expert_options.h"

struct drive_file {
    char *path;
    int fd;
    int store;
    int direct_errno; /* 0: fd is open with O_DIRECT and a read worked; else why not, and fd reads through the page cache */
};

struct drive_files {
    int is_pack;          /* extents are records of experts; else pieces of other files */
    uint64_t token_bytes; /* what a token without any hit reads of experts (the MTP layer not counted); 0 unless it is a pack */
    int n_stores;
    char *stores[BLOCK_STORES_MAX]; /* folders */
    int n_files;
    struct drive_file *files; /* ascending by store */
    int n_extents;
    struct drive_extent *extents; /* ascending by store */
};

/* model: a pack, or a vendor folder. stores: "DIR,DIR" with the pack's experts files, NULL: the model's own folder. Fails naming the folder
 * when it is no model, or a store that has none of the files. */
enum status drive_files_open(struct drive_files *out, const char *model, const char *stores, struct error *err);

/* One file that is there; one extent, all its whole blocks, or none where it has none. */
enum status drive_files_open_file(struct drive_files *out, const char *path, struct error *err);

/* A file of random bytes (a multiple of 16 MiB) in dir that has no name any more: gone when the process is. report may be NULL. */
enum status drive_files_make(struct drive_files *out, const char *dir, uint64_t bytes, void (*report)(uint64_t done_bytes, uint64_t bytes),
                             struct error *err);

void drive_files_close(struct drive_files *files);

/* The extents of one store and how many there are. */
const struct drive_extent *drive_files_store(const struct drive_files *files, int store, int *n_extents);

/* How many bytes a measured piece has: 1 MiB as the engine reads, less where every extent is smaller. */
uint32_t drive_files_piece_bytes(const struct drive_files *files);

/* Nothing of the files stays in the page cache: matters where O_DIRECT is not possible. */
void drive_files_forget(const struct drive_files *files);

/* How fast the drives give the files as the expert store reads: all stores together, as many pieces in flight as the options say, but
 * without their emulated drive. latency_p50_ns: of a block of 4096 bytes with nothing else in flight, 150 ms more; or NULL. Fails as
 * drive_rate_measure. */
enum status drive_files_rate(const struct drive_files *files, const struct expert_options *options, uint64_t time_ns,
                             double *bytes_per_second, uint64_t *latency_p50_ns, struct error *err);

#endif
