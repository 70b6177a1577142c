/* Where the expert records of a layer range lie: which files, on which drives. A pack's experts-NN file may be in the model's own folder or
 * in any of the store folders; where several drives hold the same file, reads are shared among them. */
#ifndef HEARTH_NODE_EXPERT_FILES_H
#define HEARTH_NODE_EXPERT_FILES_H

#include "model/part_layout.h"
#include "model/weights_source.h"
#include "node/block_reader.h"

/* The experts of one layer. */
struct expert_file {
    int layer;                        /* of the model */
    const struct part_layout *layout; /* borrowed from the pack */
    const uint64_t *checksums;        /* [n_records] XXH3-64; borrowed from the pack */
    char name[32];
    int fd[BLOCK_STORES_MAX]; /* by store, -1: not there */
};

struct expert_files {
    int n_stores;
    char *store[BLOCK_STORES_MAX]; /* folders */
    int n_files;
    struct expert_file *files; /* the sparse layers of the range in ascending order */
    int n_experts;
    uint64_t record_bytes_max;
};

/* stores: "DIR,DIR", NULL: the pack's own folder. Opens every file of the range with O_DIRECT where the file system allows it, and checks
 * size and header. Fails naming layer, file and the folders that were looked at; STATUS_UNSUPPORTED for a vendor folder. The source must
 * outlive it. */
enum status expert_files_open(struct expert_files *files, const struct weights_source *source, int layer_begin, int layer_end,
                              const char *stores, struct error *err);
void expert_files_close(struct expert_files *files);

/* Of a record, in its file. */
uint64_t expert_record_offset(const struct expert_file *file, int expert);

#endif
