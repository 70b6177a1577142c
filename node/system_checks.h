/* Is this machine ready for what a node does? One function per question in a table; nothing here prints. What the kernel does not show (a
 * container's /sys) is no fault: the finding says "not visible here". */
#ifndef HEARTH_NODE_SYSTEM_CHECKS_H
#define HEARTH_NODE_SYSTEM_CHECKS_H

#include <stdint.h>
#include <stdio.h>

#include "node/drive_files.h"

enum finding_level { FINDING_OK, FINDING_WARNING, FINDING_PROBLEM };

struct finding {
    enum finding_level level;
    char found[700];
    char remedy[500]; /* "" when nothing is to be done */
};

/* Where checks look. */
struct system_view {
    const char *root;                /* "", or a folder with proc/ and sys/ in it for tests */
    int (*try_io_uring)(void);       /* 0: a ring could be made, else -errno */
    int (*clock_state)(void);        /* 1: synchronised, 0: not, -errno */
    const char *state_dir;           /* NULL: there is none */
    const struct drive_files *files; /* NULL: checks of kind CHECK_DRIVE are not asked */
    const char *reader;              /* of block_reader_open */
    uint64_t drive_time_ns;          /* for measuring each store */
};

/* The real ones, without files. state_dir is borrowed. */
void system_view_init(struct system_view *view, const char *state_dir);

struct system_check {
    const char *name;                                                      /* "memory cgroup" */
    void (*look)(const struct system_view *view, struct finding *finding); /* finding is zero before */
    int is_of_drive;                                                       /* needs view->files */
};
extern const struct system_check system_checks[];
extern const int n_system_checks;

/* What a file system means for reading experts. */
struct file_system_kind {
    long magic;
    const char *name;
    const char *remark; /* NULL: a plain local one */
    const char *remedy;
};
/* NULL: not known. */
const struct file_system_kind *file_system_kind(long magic);

/* For checks: another sentence, after "; "; the level only ever rises. */
void finding_add(struct finding *finding, enum finding_level level, const char *format, ...) __attribute__((format(printf, 3, 4)));
void finding_advise(struct finding *finding, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The first line of ROOT/path without its newline; 0: not visible. */
int view_line(const struct system_view *view, const char *path, char *out, int out_bytes);

/* What follows `key`, blanks and colons on the first line that begins with it; 0: not visible. */
int view_value(const struct system_view *view, const char *path, const char *key, char *out, int out_bytes);

/* ROOT/path for reading, NULL: not visible. */
FILE *view_open(const struct system_view *view, const char *path);

/* Checks of drives (drive_checks.c). */
void check_direct_reads(const struct system_view *view, struct finding *finding);
void check_file_system(const struct system_view *view, struct finding *finding);
void check_drive_kind(const struct system_view *view, struct finding *finding);
void check_drive_rate(const struct system_view *view, struct finding *finding);

#endif
