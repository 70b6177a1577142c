/* Converting in tests. Everything here stops the test on failure. */
#ifndef HEARTH_TESTS_PACKS_H
#define HEARTH_TESTS_PACKS_H

#include "model/convert.h"

/* "SOURCE/tests/golden/NAME/checkpoint", or kindling for "kindling". */
char *checkpoint_path(char path[512], const char *name);

/* "kindling" and all tiny names; ends with NULL. */
extern const char *const checkpoint_names[];

/* A new pack under a new temporary folder (temporary_remove); identity may be NULL. */
char *make_pack(const char *source, enum precision precision, char identity[33]);

enum status try_convert(const char *source, const char *target, enum precision precision, struct error *err);

/* Same names, same bytes. */
void assert_same_folders(const char *a, const char *b);

#endif
