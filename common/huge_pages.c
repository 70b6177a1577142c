#include "common/huge_pages.h"

#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t whole_pages(uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

void *huge_pages_map(uint64_t bytes, int is_wished)
{
    bytes = whole_pages(bytes);
    char *all = mmap(NULL, bytes + HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return NULL;
    uint64_t skip = (HUGE_PAGE_BYTES - (uintptr_t)all % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    if (skip)
        munmap(all, skip);
    munmap(all + skip + bytes, HUGE_PAGE_BYTES - skip);                      /* never empty: skip is less than a page */
    madvise(all + skip, bytes, is_wished ? MADV_HUGEPAGE : MADV_NOHUGEPAGE); /* a wish */
    return all + skip;
}

void huge_pages_unmap(void *memory, uint64_t bytes)
{
    if (memory)
        munmap(memory, whole_pages(bytes));
}
