/* Memory as named accounts under one limit: what is needed is summed, printed and refused before it is allocated. */
#ifndef HEARTH_COMMON_BUDGET_H
#define HEARTH_COMMON_BUDGET_H

#include <stdint.h>

#include "common/error.h"

enum { BUDGET_ACCOUNTS_MAX = 16 };

struct budget {
    uint64_t limit;
    int n_accounts;
    struct {
        const char *name; /* what the memory is for; borrowed */
        const char *way_out; /* which option makes it smaller, or NULL */
        uint64_t bytes;
    } accounts[BUDGET_ACCOUNTS_MAX];
};

void budget_add(struct budget *budget, const char *name, uint64_t bytes, const char *way_out);
uint64_t budget_sum(const struct budget *budget);

/* STATUS_NO_MEMORY with every account, the sum and the limit in the sentence when the sum is above the limit. */
enum status budget_check(const struct budget *budget, struct error *err);

/* What this process may still take: the smaller of the machine's available memory and the room in its memory cgroup (v1 or v2). */
uint64_t memory_available_bytes(void);

/* The latter alone, UINT64_MAX without a limit: the least of this process's group and the groups around it. Page cache that the kernel would drop
 * counts as room. root: "", or a folder with proc/ and sys/ in it for tests. */
uint64_t memory_cgroup_room_bytes(const char *root);

/* The lowest limit of those groups, whatever is in use; UINT64_MAX without one. */
uint64_t memory_cgroup_limit_bytes(const char *root);

/* "3.4 GiB". text [32]. Returns text. */
char *bytes_text(uint64_t bytes, char text[32]);

#endif
