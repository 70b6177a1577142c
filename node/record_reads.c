#include "node/record_reads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/memory.h"

enum {
    ATTEMPTS = 2,
    LOOK_NS = 200000000,              /* how often deadlines are looked at while pieces are out */
    HASHES_MAX = 2 * BLOCK_READS_MAX, /* records with pieces out, and those begun and overtaken: one a class and store at most */
    UNSURE_PIECES_OUT = 1,            /* pieces per store of drafts, prefetch and warming: an issued read cannot be called back (rule 9) */
};

struct piece {
    struct block_read read; /* first: what the reader hands back */
    struct record_read *record;
    int number;
    int is_free;
    uint64_t issued_ns;
};

struct record_reads {
    struct record_reads_config config;
    pthread_mutex_t lock;
    pthread_t thread;
    int should_stop;
    struct record_read *queue[N_READ_CLASSES]; /* with pieces to issue, oldest first */
    struct piece pieces[BLOCK_READS_MAX];
    int n_out, store_out[BLOCK_STORES_MAX];
    uint64_t order, busy_since_ns;
    struct record_reads_counters counters;
    /* of records in flight; the states are the I/O thread's own */
    struct {
        struct record_read *record;
        XXH3_state_t *state;
    } hashes[HASHES_MAX];
};

static uint64_t now_ns(void)
{
    return clock_now_ns(clock_monotonic());
}

static uint64_t record_bytes(const struct record_read *r)
{
    return r->file->layout->record_bytes;
}

/* ---- the queue; under the lock ---- */

static void enqueue(struct record_reads *io, struct record_read *r)
{
    struct record_read **at = &io->queue[r->class];
    while (*at && (*at)->order < r->order)
        at = &(*at)->next;
    r->next = *at;
    *at = r;
}

static void dequeue(struct record_reads *io, struct record_read *r)
{
    struct record_read **at = &io->queue[r->class];
    while (*at && *at != r)
        at = &(*at)->next;
    if (*at)
        *at = r->next;
    r->next = NULL;
}

static void begin_attempt(struct record_read *r)
{
    r->n_issued = r->n_hashed = 0;
    r->landed = 0;
    r->stores = 0;
}

void record_reads_queue(struct record_reads *io, struct record_read *r)
{
    CHECK(r->state == RECORD_IDLE && r->into && r->class < N_READ_CLASSES);
    r->n_pieces = (int)((record_bytes(r) + io->config.piece_bytes - 1) / io->config.piece_bytes);
    CHECK(r->n_pieces >= 1 && r->n_pieces <= RECORD_PIECES_MAX);
    begin_attempt(r);
    r->state = RECORD_QUEUED;
    r->attempt = r->is_withdrawn = 0;
    r->failed_stores = 0;
    r->n_out = 0;
    r->error.status = STATUS_OK;
    r->order = io->order++;
    enqueue(io, r);
}

void record_reads_kick(struct record_reads *io)
{
    io->config.reader->wake(io->config.reader);
}

void record_reads_set_class(struct record_reads *io, struct record_read *r, enum read_class class)
{
    if (r->class == class || r->state == RECORD_IDLE || r->state == RECORD_LOST)
        return;
    int is_queued = r->n_issued < r->n_pieces;
    if (is_queued)
        dequeue(io, r);
    r->class = class;
    if (is_queued)
        enqueue(io, r);
}

static void forget_hash(struct record_reads *io, const struct record_read *r)
{
    for (int i = 0; i < HASHES_MAX; i++)
        if (io->hashes[i].record == r)
            io->hashes[i].record = NULL;
}

int record_reads_withdraw(struct record_reads *io, struct record_read *r)
{
    if (r->state == RECORD_IDLE || r->state == RECORD_LOST)
        return 0;
    if (r->state == RECORD_READING) {
        if (r->n_issued == r->n_pieces)
            return 0; /* all of it is on its way: it may as well land */
        dequeue(io, r);
        r->n_issued = r->n_pieces;
        r->is_withdrawn = 1;
        if (!r->n_out) { /* between two pieces */
            forget_hash(io, r);
            r->state = RECORD_IDLE;
        }
        return !r->n_out;
    }
    dequeue(io, r);
    r->state = RECORD_IDLE;
    return 1;
}

struct record_read *record_reads_first(const struct record_reads *io, enum read_class class)
{
    return io->queue[class];
}

static int has_queued(const struct record_reads *io)
{
    for (int class = 0; class < N_READ_CLASSES; class++)
        if (io->queue[class])
            return 1;
    return 0;
}

struct record_reads_counters record_reads_counters(const struct record_reads *io)
{
    struct record_reads_counters counters = io->counters;
    counters.busy_ns += io->n_out ? now_ns() - io->busy_since_ns : 0;
    return counters;
}

pthread_mutex_t *record_reads_lock(struct record_reads *io)
{
    return &io->lock;
}

/* ---- ends of records; under the lock ---- */

static void end_record(struct record_reads *io, struct record_read *r, enum status status)
{
    if (r->n_issued < r->n_pieces)
        dequeue(io, r);
    forget_hash(io, r);
    r->state = RECORD_IDLE;
    io->config.on_end(io->config.ctx, r, status);
}

/* A piece or the checksum was wrong: what is out comes home first, then the record is read again or fails. */
static void note_error(struct record_reads *io, struct record_read *r, enum status status, const char *what)
{
    if (r->error.status)
        return;
    error_set(&r->error, status, "%s: record %d: %s", r->file->name, r->expert, what);
    if (r->n_issued < r->n_pieces) {
        dequeue(io, r); /* no more pieces of this attempt */
        r->n_issued = r->n_pieces;
    }
}

static unsigned stores_with(const struct record_reads *io, const struct expert_file *file)
{
    unsigned there = 0;
    for (int store = 0; store < io->config.files->n_stores; store++)
        there |= file->fd[store] >= 0 ? 1u << store : 0;
    return there;
}

static unsigned stores_without_failure(const struct record_reads *io, const struct record_read *r)
{
    return stores_with(io, r->file) & ~r->failed_stores;
}

static void settle(struct record_reads *io, struct record_read *r)
{
    if (r->is_withdrawn && !r->n_out && r->state != RECORD_LOST) {
        end_record(io, r, STATUS_CANCELLED);
        return;
    }
    if (r->n_out || (!r->error.status && r->n_hashed < r->n_pieces))
        return;
    if (r->state == RECORD_LOST) {
        r->state = RECORD_IDLE;
        forget_hash(io, r);
        io->config.on_end(io->config.ctx, r, STATUS_CANCELLED);
        return;
    }
    if (!r->error.status) {
        end_record(io, r, STATUS_OK);
        return;
    }
    if (++r->attempt < ATTEMPTS || stores_without_failure(io, r)) {
        log_line(LOG_WARNING, "%s; reading it again", r->error.text);
        r->error.status = STATUS_OK;
        io->counters.retries++;
        forget_hash(io, r);
        begin_attempt(r);
        enqueue(io, r);
        return;
    }
    log_line(LOG_ERROR, "%s", r->error.text);
    end_record(io, r, r->error.status);
}

static void check_deadlines(struct record_reads *io)
{
    uint64_t now = now_ns();
    for (int i = 0; i < io->config.reader->depth; i++) {
        struct record_read *r = io->pieces[i].record;
        if (io->pieces[i].is_free || r->state == RECORD_LOST || now - io->pieces[i].issued_ns < io->config.timeout_ns)
            continue;
        char what[96];
        snprintf(what, sizeof what, "no answer from the drive within %g s", (double)io->config.timeout_ns / 1e9);
        r->error.status = STATUS_OK; /* whatever else was wrong */
        note_error(io, r, STATUS_TIMEOUT, what);
        log_line(LOG_ERROR, "%s", r->error.text);
        io->counters.timeouts++;
        r->state = RECORD_LOST;
        io->config.on_end(io->config.ctx, r, STATUS_TIMEOUT);
    }
}

/* ---- issuing ---- */

static struct piece *free_piece(struct record_reads *io)
{
    for (int i = 0; i < io->config.reader->depth; i++)
        if (io->pieces[i].is_free)
            return &io->pieces[i];
    return NULL;
}

/* Of drives that hold the file those that have not failed the record, or all when every one has. The second try and any after it read from
 * one alone: of a wrong checksum nobody could say otherwise whose piece was wrong. */
static unsigned stores_to_try(const struct record_reads *io, const struct record_read *r)
{
    if (r->attempt && r->stores)
        return r->stores;
    unsigned good = stores_without_failure(io, r);
    return good ? good : stores_with(io, r->file);
}

/* The least busy of these that has room; -1. */
static int choose_store(const struct record_reads *io, const struct record_read *r)
{
    int best = -1, room = r->class < READ_DRAFT ? io->config.store_depth : UNSURE_PIECES_OUT;
    unsigned stores = stores_to_try(io, r);
    for (int store = 0; store < io->config.files->n_stores; store++)
        if (stores >> store & 1 && io->store_out[store] < room && (best < 0 || io->store_out[store] < io->store_out[best]))
            best = store;
    return best;
}

/* The next piece to issue: by class, then who came first; a record whose drives are all busy does not hold up others. */
static struct piece *next_piece(struct record_reads *io)
{
    struct piece *piece = free_piece(io);
    for (int i = 0; i < N_READ_CLASSES && piece; i++)
        for (struct record_read *r = io->queue[i]; r; r = r->next) {
            int store = choose_store(io, r);
            if (store < 0)
                continue;
            uint64_t at = (uint64_t)r->n_issued * io->config.piece_bytes, left = record_bytes(r) - at;
            piece->read = (struct block_read){.fd = r->file->fd[store],
                                              .store = store,
                                              .offset = expert_record_offset(r->file, r->expert) + at,
                                              .bytes = (uint32_t)(left < io->config.piece_bytes ? left : io->config.piece_bytes),
                                              .into = r->into + at};
            r->stores |= 1u << store;
            piece->record = r;
            piece->number = r->n_issued++;
            piece->is_free = 0;
            piece->issued_ns = now_ns();
            r->state = RECORD_READING;
            r->n_out++;
            if (r->n_issued == r->n_pieces)
                dequeue(io, r);
            io->store_out[store]++;
            if (!io->n_out++)
                io->busy_since_ns = piece->issued_ns;
            return piece;
        }
    return NULL;
}

/* Takes the lock off while the reader works: a submission may copy (tmpfs) or wait for the kernel. */
static void issue(struct record_reads *io, struct block_read **ended, int *n_ended)
{
    struct piece *piece;
    while (*n_ended < BLOCK_READS_MAX && !io->should_stop && (piece = next_piece(io))) {
        pthread_mutex_unlock(&io->lock);
        int failed = io->config.reader->submit(io->config.reader, &piece->read);
        pthread_mutex_lock(&io->lock);
        if (failed) {
            piece->read.result = failed;
            ended[(*n_ended)++] = &piece->read;
        }
    }
}

/* ---- landing ---- */

static XXH3_state_t *hash_of(struct record_reads *io, struct record_read *r)
{
    int empty = -1;
    for (int i = 0; i < HASHES_MAX; i++) {
        if (io->hashes[i].record == r)
            return io->hashes[i].state;
        if (!io->hashes[i].record)
            empty = i;
    }
    CHECK(empty >= 0);
    if (!io->hashes[empty].state)
        io->hashes[empty].state = XXH3_createState();
    CHECK(io->hashes[empty].state && XXH3_64bits_reset(io->hashes[empty].state) == XXH_OK);
    io->hashes[empty].record = r;
    return io->hashes[empty].state;
}

/* Hashes the pieces that are there in order, so that the last one to land leaves little to do. Without the lock: the memory is the I/O
 * thread's until on_end. */
static void hash_landed(struct record_reads *io, struct record_read *r)
{
    while (!r->error.status && r->n_hashed < r->n_pieces && r->landed >> r->n_hashed & 1) {
        uint64_t at = (uint64_t)r->n_hashed * io->config.piece_bytes, left = record_bytes(r) - at;
        XXH3_state_t *hash = hash_of(io, r);
        pthread_mutex_unlock(&io->lock);
        XXH3_64bits_update(hash, r->into + at, left < io->config.piece_bytes ? left : io->config.piece_bytes);
        pthread_mutex_lock(&io->lock);
        if (++r->n_hashed < r->n_pieces || XXH3_64bits_digest(hash) == r->file->checksums[r->expert])
            continue;
        io->counters.checksum_errors++;
        if (!(r->stores & (r->stores - 1)))
            r->failed_stores |= r->stores; /* of pieces from several drives nobody knows whose was wrong */
        note_error(io, r, STATUS_CORRUPT, "does not match its checksum: the file or the drive is damaged");
    }
}

static void on_piece(struct record_reads *io, struct piece *piece)
{
    struct record_read *r = piece->record;
    char what[160];
    piece->is_free = 1;
    io->store_out[piece->read.store]--;
    if (!--io->n_out)
        io->counters.busy_ns += now_ns() - io->busy_since_ns;
    if (piece->read.result == (int32_t)piece->read.bytes) {
        r->landed |= UINT64_C(1) << piece->number;
        if (r->state != RECORD_LOST)
            hash_landed(io, r);
    } else {
        io->counters.read_errors++;
        if (piece->read.result < 0)
            snprintf(what, sizeof what, "read of %u bytes at %llu in %s: %s", piece->read.bytes, (unsigned long long)piece->read.offset,
                     io->config.files->store[piece->read.store], strerror(-piece->read.result));
        else
            snprintf(what, sizeof what, "read of %u bytes at %llu in %s gave %d: the file has become shorter", piece->read.bytes,
                     (unsigned long long)piece->read.offset, io->config.files->store[piece->read.store], piece->read.result);
        note_error(io, r, STATUS_IO, what);
        r->failed_stores |= 1u << piece->read.store;
    }
    r->n_out--; /* only now: while this thread hashes without the lock, the record must not look free */
    settle(io, r);
}

/* ---- the thread ---- */

static void *run(void *argument)
{
    struct record_reads *io = argument;
    pthread_mutex_lock(&io->lock);
    while (!io->should_stop) {
        struct block_read *ended[BLOCK_READS_MAX];
        int n_ended = 0;
        issue(io, ended, &n_ended);
        if (!io->n_out && !n_ended && !has_queued(io) && io->config.on_idle && io->config.on_idle(io->config.ctx))
            continue;
        pthread_mutex_unlock(&io->lock);
        if (!n_ended)
            n_ended = io->config.reader->reap(io->config.reader, ended, BLOCK_READS_MAX, LOOK_NS);
        pthread_mutex_lock(&io->lock);
        for (int i = 0; i < n_ended; i++)
            on_piece(io, (struct piece *)ended[i]);
        check_deadlines(io);
    }
    pthread_mutex_unlock(&io->lock);
    return NULL;
}

enum status record_reads_start(struct record_reads **out, const struct record_reads_config *config, struct error *err)
{
    CHECK(config->reader->depth <= BLOCK_READS_MAX && config->piece_bytes % BLOCK_ALIGN_BYTES == 0);
    struct record_reads *io = xcalloc(1, sizeof *io);
    io->config = *config;
    pthread_mutex_init(&io->lock, NULL);
    for (int i = 0; i < BLOCK_READS_MAX; i++)
        io->pieces[i].is_free = 1;
    *out = io;
    if (!pthread_create(&io->thread, NULL, run, io))
        return STATUS_OK;
    config->reader->close(config->reader, 0);
    pthread_mutex_destroy(&io->lock);
    free(io);
    *out = NULL;
    return error_set(err, STATUS_NO_MEMORY, "no thread to be had for reading");
}

int record_reads_stop(struct record_reads **reads, uint64_t timeout_ns)
{
    struct record_reads *io = *reads;
    pthread_mutex_lock(&io->lock);
    io->should_stop = 1;
    pthread_mutex_unlock(&io->lock);
    io->config.reader->wake(io->config.reader);
    pthread_join(io->thread, NULL);
    *reads = NULL;
    if (!io->config.reader->close(io->config.reader, timeout_ns))
        return 0; /* the drive still writes into our pieces */
    for (int i = 0; i < HASHES_MAX; i++)
        XXH3_freeState(io->hashes[i].state);
    pthread_mutex_destroy(&io->lock);
    free(io);
    return 1;
}
