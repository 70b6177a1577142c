/* Memory in huge pages where the system gives them: drives read into it with a seventh of the CPU time and up to 2.6 times as fast
 * (docs/PERFORMANCE.md, "Drives"), and arithmetic misses fewer translations. */
#ifndef HEARTH_COMMON_HUGE_PAGES_H
#define HEARTH_COMMON_HUGE_PAGES_H

#include <stdint.h>

enum { HUGE_PAGE_BYTES = 2 << 20 };

/* Zeroed memory that begins at the border of a huge page; is_wished 0: small pages, for comparison. NULL: there is none (errno). Nothing is
 * touched yet. */
void *huge_pages_map(uint64_t bytes, int is_wished);
void huge_pages_unmap(void *memory, uint64_t bytes); /* the same bytes; NULL is allowed */

#endif
