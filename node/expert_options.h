/* What a person can say about experts and memory: the same rows for hearth-node, hearth run and the benchmarks. */
#ifndef HEARTH_NODE_EXPERT_OPTIONS_H
#define HEARTH_NODE_EXPERT_OPTIONS_H

#include "common/options.h"

struct expert_options {
    const char *store;        /* "/mnt/a,/mnt/b": folders with the pack's experts-NN files; NULL: the model's own folder */
    const char *reader;       /* "auto", "io_uring", "pread" */
    const char *emulate_disk; /* "GB/s,us[,jitter]" or NULL */
    const char *prefetch;     /* "auto", "on", "off" */
    const char *use_counts;   /* folder; NULL: the state directory; "none": not kept */
    int64_t slots;            /* experts kept in memory; 0: what the memory allows */
    int64_t read_depth;       /* pieces in flight per store; 0: default */
    int pin;
};

/* Reading ahead of what is asked for: never, always, where that is found to be faster. */
enum prefetch_mode { PREFETCH_OFF, PREFETCH_ON, PREFETCH_AUTO };
enum prefetch_mode expert_prefetch_mode(const struct expert_options *options);

/* Pieces in flight on each of n_stores (1 to BLOCK_STORES_MAX) drives: what read_depth says, or fewer where one reader cannot have so many
 * for all of them. */
int expert_read_depth(const struct expert_options *options, int n_stores);

/* Bytes per second of the drive that emulate_disk names, times the folders in `store`: each has a clock of its own. 0: none is named, or
 * none that emulated_drive_parse takes. */
double expert_emulated_rate(const struct expert_options *options);

#define EXPERT_OPTION_ROWS(type, member)                                                                                                   \
    {"store", OPTION_TEXT, offsetof(type, member.store), .metavar = "DIR,...",                                                             \
     .help = "folders, on several drives, with the pack's experts-NN files; default: the model's own folder"},                             \
        {"slots", OPTION_INT, offsetof(type, member.slots), "0", 0, 1 << 24, .metavar = "N",                                               \
         .help = "experts kept in memory; 0: as many as the memory allows"},                                                               \
        {"pin", OPTION_FLAG, offsetof(type, member.pin), .help = "lock the experts' memory, so that it is never swapped out"},             \
        {"prefetch", OPTION_CHOICE, offsetof(type, member.prefetch), "auto", .choices = "auto|on|off", .metavar = "WHEN",                  \
         .help = "read likely experts while the drive is idle; auto: where that is measured to be faster"},                                \
        {"reader", OPTION_CHOICE, offsetof(type, member.reader), "auto", .choices = "auto|io_uring|pread", .metavar = "KIND",              \
         .help = "how files are read"},                                                                                                    \
        {"read-depth", OPTION_INT, offsetof(type, member.read_depth), "0", 0, 32, .metavar = "N",                                          \
         .help = "pieces that one drive reads at once, at most 64 on all drives; 0: 8"},                                                   \
        {"emulate-disk", OPTION_TEXT, offsetof(type, member.emulate_disk), .metavar = "GB/s,US[,JITTER]",                                  \
         .help = "answer no sooner than a drive of this rate and latency would"},                                                          \
    {                                                                                                                                      \
        "use-counts", OPTION_TEXT, offsetof(type, member.use_counts), .metavar = "DIR",                                                    \
                                            .help = "where counts of uses are kept to warm the memory at the next start; default: the "    \
                                                    "state directory; none: not kept"                                                      \
    }

#endif
