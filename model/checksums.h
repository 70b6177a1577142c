/* Checksums as text, and the side file of checksums that lets us verify a vendor folder, which brings none (docs/FORMATS.md, "Side file"):
 * written when the folder is opened for the first time, which is trusted and said in the log, and compared ever after. */
#ifndef HEARTH_MODEL_CHECKSUMS_H
#define HEARTH_MODEL_CHECKSUMS_H

#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "model/vendor_folder.h"

/* 16 and 32 lower-case hexadecimal digits. */
void checksum_text(char out[17], uint64_t checksum);
int checksum_parse(const char *text, uint64_t *checksum);      /* 0: not 16 such digits */
void identity_text(char out[33], const void *bytes, size_t n); /* XXH3-128 */

#define CHECKSUMS_FILE ".hearth-checksums.json"

/* Gives every tensor of the folder its checksum from the side file in the folder or in the state directory; *found 0: there is none. Fails
 * when the file belongs to other headers or sizes. */
enum status checksums_load(struct vendor_folder *folder, int *found, struct error *err);

/* The same, but writes the side file when there is none: reads all weights once. In the folder when it may be written to (a directory
 * without any write permission bit is left alone, even by root), else in the state directory. */
enum status checksums_establish(struct vendor_folder *folder, struct error *err);

/* Who is told how far that reading is: after every tensor, and a last time with done = total, also when it failed. One for the process, set before
 * threads start; NULL, the default: nobody. */
void checksums_set_report(void (*report)(uint64_t done_bytes, uint64_t total_bytes));

/* Identity of a folder whose tensors have checksums: XXH3-128 over config.json and every tensor's name, dtype, shape and checksum in the
 * order of names. */
enum status checksums_identity(const struct vendor_folder *folder, char identity[33], struct error *err);

#endif
