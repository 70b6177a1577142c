/* A program's options from a file and the command line, by one table of rows. The file is INI: "name = value" lines with the names of the
 * flags ('_' may stand for
 * '-'), '#' and ';' comments, at most one section, named after the program. */
#ifndef HEARTH_COMMON_CONFIG_FILE_H
#define HEARTH_COMMON_CONFIG_FILE_H

#include "common/options.h"

/* Defaults, then the file of the row "config" (--config FILE) where one is given, then the flags. No positional arguments. An unknown name,
 * section or value, or a name given twice, is STATUS_INVALID with file and line. Texts that came from the file live as long as the process.
 * section: "node". */
enum status config_options_parse(const struct option_row *rows, int n_rows, const char *section, int argc, char **argv, void *out,
                                 struct error *err);

#endif
