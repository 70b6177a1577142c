/* Block reads through one io_uring. Submissions gather in the ring and go to the kernel together with the next wait: one system call for
 * both. A read of an eventfd is always in the ring, so that any thread can end a wait. */
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/memory.h"
#include "node/block_reader_internal.h"

enum { RETRY_NS = 1000000 }; /* between tries while the kernel has no memory for a submission */

struct uring_reader {
    struct block_reader base;
    struct io_uring ring;
    int event_fd;
    int n_flying; /* reads not yet returned */
    int is_wake_armed, is_closing;
    uint64_t wake_count; /* where the read of event_fd lands */
};

/* ---- the ring ---- */

/* Everything submitted reaches the kernel, or stays for the next time when it has no memory. Older kernels stop a batch at a bad fd,
 * therefore the loop. */
static void flush(struct uring_reader *r)
{
    while (io_uring_sq_ready(&r->ring) > 0)
        if (io_uring_submit(&r->ring) <= 0)
            return;
}

static void arm_wake(struct uring_reader *r)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring);
    CHECK(sqe); /* the ring has a place for it beside `depth` reads */
    io_uring_prep_read(sqe, r->event_fd, &r->wake_count, sizeof r->wake_count, 0);
    io_uring_sqe_set_data(sqe, r);
    r->is_wake_armed = 1;
}

/* Takes what has ended, without a system call. Returns how many reads; *is_woken is set when a wake was among it. */
static int harvest(struct uring_reader *r, struct block_read **done, int max, int *is_woken)
{
    struct io_uring_cqe *cqe;
    int n = 0;
    while (n < max && io_uring_peek_cqe(&r->ring, &cqe) == 0) {
        void *data = io_uring_cqe_get_data(cqe);
        int result = cqe->res;
        io_uring_cqe_seen(&r->ring, cqe);
        if (data == r) {
            *is_woken = 1;
            r->is_wake_armed = 0;
            if (!r->is_closing)
                arm_wake(r);
        } else if (data) { /* NULL: the answer to a cancel */
            struct block_read *read = data;
            read->result = result;
            read->done_ns = block_now_ns();
            r->n_flying--;
            done[n++] = read;
        }
    }
    return n;
}

/* Submits and waits until something has ended or the deadline has passed; may return early. */
static void wait_until(struct uring_reader *r, uint64_t now, uint64_t deadline)
{
    struct timespec t = block_timespec(deadline - now);
    struct __kernel_timespec left = {.tv_sec = t.tv_sec, .tv_nsec = t.tv_nsec};
    struct io_uring_cqe *cqe;
    int rc = io_uring_submit_and_wait_timeout(&r->ring, &cqe, 1, &left, NULL);
    if (rc < 0 && rc != -ETIME && rc != -EINTR)
        nanosleep(&(struct timespec){0, RETRY_NS}, NULL);
    flush(r);
}

/* ---- the seam ---- */

static int submit(struct block_reader *base, struct block_read *read)
{
    struct uring_reader *r = (struct uring_reader *)base;
    block_read_check(read);
    CHECK(r->n_flying < base->depth);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring);
    if (!sqe)
        return -EAGAIN; /* reads ended but the kernel had no memory for those that came after them */
    io_uring_prep_read(sqe, read->fd, read->into, read->bytes, read->offset);
    io_uring_sqe_set_data(sqe, read);
    read->submitted_ns = block_now_ns();
    r->n_flying++;
    return 0;
}

static int reap(struct block_reader *base, struct block_read **done, int max, uint64_t timeout_ns)
{
    struct uring_reader *r = (struct uring_reader *)base;
    uint64_t now = block_now_ns(), deadline = block_deadline_ns(timeout_ns);
    int is_woken = 0, n = harvest(r, done, max, &is_woken);
    if (n || is_woken || !timeout_ns) {
        flush(r);
        return n ? n : harvest(r, done, max, &is_woken);
    }
    while (!n && !is_woken && now < deadline) {
        wait_until(r, now, deadline);
        n = harvest(r, done, max, &is_woken);
        now = block_now_ns();
    }
    return n;
}

static void wake(struct block_reader *base)
{
    struct uring_reader *r = (struct uring_reader *)base;
    uint64_t one = 1;
    CHECK(write(r->event_fd, &one, sizeof one) == sizeof one);
}

static int close_reader(struct block_reader *base, uint64_t timeout_ns)
{
    struct uring_reader *r = (struct uring_reader *)base;
    uint64_t now = block_now_ns(), deadline = block_deadline_ns(timeout_ns);
    struct block_read *done[BLOCK_READS_MAX];
    int is_woken;
    r->is_closing = 1;
    wake(base); /* the read of the eventfd must end too: the kernel would write to freed memory */
    flush(r);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring);
    if (sqe) { /* what waits inside the kernel ends early; what the drive has begun does not; kernels before 5.19 refuse and end nothing
                  early */
        io_uring_prep_cancel64(sqe, 0, IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY);
        io_uring_sqe_set_data(sqe, NULL);
    }
    while (harvest(r, done, BLOCK_READS_MAX, &is_woken), r->n_flying || r->is_wake_armed) {
        if (now >= deadline)
            return 0;
        wait_until(r, now, deadline);
        now = block_now_ns();
    }
    io_uring_queue_exit(&r->ring);
    close(r->event_fd);
    free(r);
    return 1;
}

/* ---- opening ---- */

static const char *reason(int error)
{
    return error == EPERM || error == EACCES ? " (forbidden here: a seccomp filter, as containers have, or sysctl kernel.io_uring_disabled)"
           : error == ENOSYS                 ? " (the kernel has none: too old, built without it, or hidden by a seccomp filter)"
           : error == ENOMEM                 ? " (raise the limit of locked memory: ulimit -l)"
                                             : "";
}

/* Shows that entering the ring is allowed too, not only making one. */
static int try_ring(struct uring_reader *r, struct error *err)
{
    if (!(r->ring.features & IORING_FEAT_EXT_ARG))
        return error_set(err, STATUS_UNSUPPORTED, "io_uring: this kernel's cannot wait with a timeout; Linux 5.11 is the oldest that can");
    arm_wake(r);
    int rc = io_uring_submit(&r->ring);
    if (rc != 1)
        return error_set(err, STATUS_UNSUPPORTED, "io_uring: %s%s", strerror(-rc), reason(-rc));
    return STATUS_OK;
}

enum status uring_reader_open(struct block_reader **out, int depth, struct error *err)
{
    CHECK(depth > 0 && depth <= BLOCK_READS_MAX);
    struct uring_reader *r = xcalloc(1, sizeof *r);
    r->base = (struct block_reader){"io_uring", depth, submit, reap, wake, close_reader};
    int rc = io_uring_queue_init((unsigned)depth + 2, &r->ring, 0); /* reads, the eventfd, a cancel */
    if (rc < 0) {
        free(r);
        return error_set(err, STATUS_UNSUPPORTED, "io_uring: %s%s", strerror(-rc), reason(-rc));
    }
    enum status status = STATUS_OK;
    r->event_fd = eventfd(0, EFD_CLOEXEC); /* blocking: a read of a non-blocking one would end at once with EAGAIN */
    if (r->event_fd < 0)
        status = error_errno(err, STATUS_IO, "eventfd");
    if (!status)
        status = try_ring(r, err);
    if (status) {
        io_uring_queue_exit(&r->ring);
        if (r->event_fd >= 0)
            close(r->event_fd);
        free(r);
        return status;
    }
    *out = &r->base;
    return STATUS_OK;
}
