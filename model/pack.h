/* A Hearth pack: a directory with manifest.json, copies of the model's small files, and one file per part (docs/FORMATS.md, "Pack").
 * Opening reads the manifest, the small files and every header; weights are read and verified part by part or record by record. Nothing in
 * it is believed unchecked. */
#ifndef HEARTH_MODEL_PACK_H
#define HEARTH_MODEL_PACK_H

#include <stdint.h>
#include <jansson.h>

#include "common/error.h"
#include "model/config.h"
#include "model/part_layout.h"
#include "model/weights_source.h"

enum { PACK_VERSION = 1, PACK_HEADER_BYTES = 4096, PACK_COPIES_MAX = 5, PACK_COPY_MAX_BYTES = 256 << 20 };

#define PACK_MANIFEST "manifest.json"
#define PACK_JOURNAL "convert.journal" /* present while a conversion is unfinished */

/* Small files of the model that a pack carries along: config.json and those that are there of the others. */
extern const char *const pack_copy_names[PACK_COPIES_MAX];

struct pack_copy {
    const char *name; /* one of pack_copy_names */
    uint64_t bytes, checksum;
};

struct pack_part {
    struct part_layout layout;
    char file[32];
    uint64_t file_bytes; /* PACK_HEADER_BYTES and the image */
    uint64_t *checksums; /* [n_tensors], experts: [n_records] */
};

struct pack {
    char *dir;
    struct model_config config;
    enum precision precision;
    char identity[33];
    int n_copies;
    struct pack_copy copies[PACK_COPIES_MAX];
    int n_parts;
    struct pack_part *parts; /* in the order of part_next */
};

/* Fails naming file and thing. Part files that are not there are no error yet (a node keeps only its own range); those that are there must
 * have the size and header that the manifest says. */
enum status pack_open(struct pack **out, const char *dir, struct error *err);
void pack_close(struct pack **pack);

/* NULL: the model has no such part. */
const struct pack_part *pack_find(const struct pack *pack, enum part_kind part, int layer);

/* How many checksums a part has: its tensors, or its records. */
int pack_part_n_checksums(const struct pack_part *part);

/* Reads a part's image (layout.bytes, 4096-byte aligned memory not needed) and verifies every tensor or record. image NULL: verifies only,
 * in a few MB. Fails naming file and tensor or record. */
enum status pack_read_part(const struct pack *pack, const struct pack_part *part, uint8_t *image, struct error *err);

/* Opens a file that is to hold this part, wherever it lies, and checks size and header: for those who read expert records themselves. A record stands at
 * PACK_HEADER_BYTES + expert * layout.record_bytes and its checksum is the XXH3-64 of all its bytes. *fd is the caller's; -1 on failure. */
enum status pack_part_open(const struct pack_part *part, const char *path, int *fd, struct error *err);

/* --- for the converter --- */

/* An empty pack in memory whose parts have the given files and no layouts yet. */
struct pack *pack_new(const char *dir, const struct model_config *config, enum precision precision);
/* Sets the layout of parts[i] and makes room for its checksums. */
void pack_set_layout(struct pack_part *part, const struct part_layout *layout);
void pack_header_fill(uint8_t header[PACK_HEADER_BYTES], const struct pack_part *part);
/* Sets pack->identity and returns the manifest's text (malloc'ed). */
char *pack_manifest_text(struct pack *pack);

#endif
