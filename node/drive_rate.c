#include "node/drive_rate.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/check.h"
#include "common/huge_pages.h"
#include "common/clock.h"
#include "common/memory.h"

enum {
    SAMPLES_MAX = 1 << 16, /* latencies kept, the first; only minutes of small reads give more */
    LATENCY_BLOCKS = 4096,
};
static const uint64_t STUCK_NS = 10000000000u;

/* Pieces of one store in flight, and the extent they come from. */
struct lane {
    int extents_begin, extents_end; /* into load->extents */
    const struct drive_extent *extent;
    uint64_t next; /* bytes of the extent that were submitted */
};

struct measurement {
    const struct drive_load *load;
    struct block_reader *reader;
    struct lane lanes[BLOCK_STORES_MAX];
    int n_lanes, n_slots, n_in_flight;
    struct block_read reads[BLOCK_READS_MAX];
    const struct drive_extent *extent_of[BLOCK_READS_MAX]; /* of the read in flight */
    uint8_t *memory;
    uint64_t random, bytes, n_reads;
    uint64_t *latencies; /* [SAMPLES_MAX] */
};

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void lanes_init(struct measurement *m)
{
    const struct drive_load *load = m->load;
    for (int i = 0; i < load->n_extents; i++) {
        const struct drive_extent *e = &load->extents[i];
        CHECK(e->bytes && e->bytes % BLOCK_ALIGN_BYTES == 0 && e->offset % BLOCK_ALIGN_BYTES == 0);
        if (i && e->store == e[-1].store) {
            m->lanes[m->n_lanes - 1].extents_end++;
            continue;
        }
        CHECK((!i || e->store > e[-1].store) && m->n_lanes < BLOCK_STORES_MAX);
        m->lanes[m->n_lanes++] = (struct lane){i, i + 1, NULL, 0};
    }
    m->n_slots = m->n_lanes * load->depth;
}

/* The next piece of the slot's lane. */
static enum status submit(struct measurement *m, int slot, struct error *err)
{
    struct lane *lane = &m->lanes[slot / m->load->depth];
    if (!lane->extent || lane->next == lane->extent->bytes) {
        uint64_t n = (uint64_t)(lane->extents_end - lane->extents_begin);
        lane->extent = &m->load->extents[lane->extents_begin + (int)(next_random(&m->random) % n)];
        lane->next = 0;
    }
    const struct drive_extent *e = lane->extent;
    uint64_t left = e->bytes - lane->next, piece = m->load->piece_bytes;
    m->extent_of[slot] = e;
    m->reads[slot] = (struct block_read){
        .fd = e->fd,
        .store = e->store,
        .offset = e->offset + lane->next,
        .bytes = (uint32_t)(left < piece ? left : piece),
        .into = m->memory + (uint64_t)slot * piece,
    };
    lane->next += m->reads[slot].bytes;
    int result = m->reader->submit(m->reader, &m->reads[slot]);
    if (result < 0)
        return error_set(err, STATUS_IO, "%s: cannot start a read: %s", e->path, strerror(-result));
    m->n_in_flight++;
    return STATUS_OK;
}

static enum status account(struct measurement *m, int slot, struct error *err)
{
    const struct block_read *read = &m->reads[slot];
    const char *path = m->extent_of[slot]->path;
    if (read->result < 0)
        return error_set(err, STATUS_IO, "%s: cannot read at byte %llu: %s", path, (unsigned long long)read->offset,
                         strerror(-read->result));
    if ((uint32_t)read->result != read->bytes)
        return error_set(err, STATUS_CORRUPT, "%s: ends at byte %llu, expected more", path,
                         (unsigned long long)(read->offset + (uint32_t)read->result));
    if (m->n_reads < SAMPLES_MAX)
        m->latencies[m->n_reads] = read->done_ns - read->submitted_ns;
    m->n_reads++;
    m->bytes += read->bytes;
    return STATUS_OK;
}

/* Keeps every lane full until the time is up, then waits for the rest; after a failure only the latter. */
static enum status run(struct measurement *m, uint64_t end_ns, struct error *err)
{
    enum status status = STATUS_OK;
    for (int slot = 0; slot < m->n_slots && !status; slot++)
        status = submit(m, slot, err);
    uint64_t progress_ns = clock_now_ns(clock_monotonic());
    while (m->n_in_flight) {
        struct block_read *done[BLOCK_READS_MAX];
        int n = m->reader->reap(m->reader, done, BLOCK_READS_MAX, STUCK_NS);
        uint64_t now_ns = clock_now_ns(clock_monotonic());
        if (n == 0 && now_ns - progress_ns >= STUCK_NS)
            return error_set(err, STATUS_TIMEOUT, "a read did not end in %d s: the drive hangs", (int)(STUCK_NS / 1000000000u));
        progress_ns = n ? now_ns : progress_ns;
        m->n_in_flight -= n;
        for (int i = 0; i < n; i++) {
            int slot = (int)(done[i] - m->reads);
            CHECK(slot >= 0 && slot < m->n_slots);
            if (!status)
                status = account(m, slot, err);
            if (!status && now_ns < end_ns)
                status = submit(m, slot, err);
        }
    }
    return status;
}

static uint64_t process_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

enum status drive_rate_measure(struct drive_rate *out, struct block_reader *reader, const struct drive_load *load, struct error *err)
{
    CHECK(load->n_extents > 0 && load->depth > 0 && load->piece_bytes && load->piece_bytes % BLOCK_ALIGN_BYTES == 0);
    struct measurement *m = xcalloc(1, sizeof *m);
    *m = (struct measurement){.load = load, .reader = reader, .random = load->seed * 2 + 88172645463325253u};
    lanes_init(m);
    CHECK(m->n_slots <= reader->depth && m->n_slots <= BLOCK_READS_MAX);
    size_t memory_bytes = (size_t)m->n_slots * load->piece_bytes;
    m->memory = huge_pages_map(memory_bytes, !load->has_small_pages);
    if (!m->memory) {
        free(m);
        return error_errno(err, STATUS_NO_MEMORY, "cannot map %zu MiB to read into", memory_bytes >> 20);
    }
    memset(m->memory, 1, memory_bytes); /* before the clock runs */
    m->latencies = xcalloc(SAMPLES_MAX, sizeof *m->latencies);

    uint64_t start_ns = clock_now_ns(clock_monotonic()), start_cpu_ns = process_cpu_ns();
    enum status status = run(m, start_ns + load->time_ns, err);
    uint64_t elapsed_ns = clock_now_ns(clock_monotonic()) - start_ns, cpu_ns = process_cpu_ns() - start_cpu_ns;
    if (status == STATUS_TIMEOUT && m->n_in_flight)
        return status; /* the drive may still write into all of it */
    if (!status) {
        uint64_t n = m->n_reads < SAMPLES_MAX ? m->n_reads : SAMPLES_MAX;
        qsort(m->latencies, n, sizeof *m->latencies, compare);
        *out = (struct drive_rate){
            .bytes_per_second = (double)m->bytes * 1e9 / (double)(elapsed_ns ? elapsed_ns : 1),
            .p50_ns = m->latencies[n / 2],
            .p99_ns = m->latencies[n - 1 - n / 100],
            .bytes = m->bytes,
            .elapsed_ns = elapsed_ns,
            .n_reads = m->n_reads,
            .cpu_ns = cpu_ns,
        };
    }
    huge_pages_unmap(m->memory, memory_bytes);
    free(m->latencies);
    free(m);
    return status;
}

enum status drive_latency_measure(uint64_t *p50_ns, struct block_reader *reader, const struct drive_extent *extents, int n_extents,
                                  uint64_t time_ns, struct error *err)
{
    struct drive_extent *blocks = xcalloc(LATENCY_BLOCKS, sizeof *blocks);
    uint64_t random = 88172645463325252u;
    for (int i = 0; i < LATENCY_BLOCKS; i++) { /* ascending by store, as the extents are */
        struct drive_extent *block = &blocks[i];
        *block = extents[(size_t)i * (size_t)n_extents / LATENCY_BLOCKS];
        block->offset += (next_random(&random) >> 11) % (block->bytes / BLOCK_ALIGN_BYTES) * BLOCK_ALIGN_BYTES;
        block->bytes = BLOCK_ALIGN_BYTES;
    }
    struct drive_load load = {blocks, LATENCY_BLOCKS, BLOCK_ALIGN_BYTES, 1, time_ns, 1, 0};
    struct drive_rate rate = {0};
    enum status status = drive_rate_measure(&rate, reader, &load, err);
    *p50_ns = rate.p50_ns;
    free(blocks);
    return status;
}
