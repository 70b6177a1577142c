/* A block_reader that wraps another and lets chosen reads go wrong. What goes wrong is decided when a read is submitted, by a countdown, so
 * a test knows which read it is whatever order they end in. Everything is checked against the read's own place: file and range. */
#ifndef HEARTH_TESTS_FAULT_READER_H
#define HEARTH_TESTS_FAULT_READER_H

#include "node/block_reader.h"

enum fault_kind {
    FAULT_EIO,   /* ends with -EIO; the memory holds rubbish */
    FAULT_SHORT, /* ends with half of the bytes; rubbish behind them */
    FAULT_FLIP,  /* ends well, with one bit wrong */
    FAULT_HANG,  /* never ends */
};

enum { FAULTS_MAX = 16, FAULT_ALWAYS = -1 };

struct fault {
    enum fault_kind kind;
    const char *path;       /* NULL: any file. Compared by device and inode as they are when the fault is added */
    int fd;                 /* only reads of this descriptor; 0 and below: of any */
    uint64_t offset, bytes; /* only reads that touch this range of the file; bytes 0: up to its end */
    int skip;               /* so many such reads pass first */
    int times;              /* then so many go wrong; FAULT_ALWAYS: all */
};

/* Takes over *inner. Its close returns 0 while reads hang. */
struct block_reader *fault_reader_new(struct block_reader **inner);

/* Any thread, any time; for reads submitted from now on. The first fault that fits is the one that happens. Returns a number for
 * fault_reader_count. */
int fault_reader_add(struct block_reader *reader, const struct fault *fault);

/* How often it has happened. Any thread. */
int fault_reader_count(struct block_reader *reader, int fault);

/* Reads submitted so far, those that hang too. Any thread. */
int fault_reader_reads(struct block_reader *reader);

#endif
