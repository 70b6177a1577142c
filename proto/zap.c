#include "proto/zap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "common/check.h"
#include "common/log.h"
#include "common/memory.h"
#include "proto/sockets.h"

enum {
    ANSWERS_PER_CALL = 64,
    FRAMES_MAX = 12,
    FRAME_BYTES_MAX = 256,
    CURVE_KEY_BYTES = 32,
    WAITING_MAX = 16, /* more strangers than that at once are refused without waiting */
};
#define WAIT_NS UINT64_C(500000000)
#define LOG_EVERY_NS UINT64_C(5000000000)

struct zap_request {
    char frames[FRAMES_MAX][FRAME_BYTES_MAX];
    int bytes[FRAMES_MAX], n;
    char key[PEER_KEY_BYTES];
    uint64_t deadline_ns;
};
/* The frames of a request, after the two of the envelope. */
enum { ROUTING_ID, DELIMITER, VERSION, REQUEST_ID, DOMAIN, ADDRESS, IDENTITY, MECHANISM, CREDENTIALS };

enum status zap_open(struct zap *zap, void *context, int plaintext, struct error *err)
{
    *zap = (struct zap){.plaintext = plaintext, .waiting = xcalloc(WAITING_MAX, sizeof *zap->waiting)};
    /* ROUTER, not REP: a request that is not answered cannot wedge it. */
    zap->socket = zmq_socket(context, ZMQ_ROUTER);
    if (!zap->socket || zmq_bind(zap->socket, "inproc://zeromq.zap.01"))
        return error_set(err, STATUS_IO, "cannot open the key checker: %s", zmq_strerror(errno));
    return STATUS_OK;
}

void zap_close(struct zap *zap)
{
    if (zap->socket)
        zmq_close(zap->socket);
    free(zap->keys);
    free(zap->waiting);
    *zap = (struct zap){0};
}

void zap_set_keys(struct zap *zap, const struct trusted_keys *trusted)
{
    zap->n_keys = 0;
    zap->keys = xrealloc(zap->keys, (size_t)trusted->n * sizeof *zap->keys);
    for (int i = 0; i < trusted->n; i++)
        memcpy(zap->keys[zap->n_keys++], trusted->keys[i].key, PEER_KEY_BYTES);
}

void zap_set_key(struct zap *zap, const char *key)
{
    struct trusted_key one = {0};
    if (key)
        memcpy(one.key, key, strnlen(key, PEER_KEY_BYTES - 1));
    zap_set_keys(zap, &(struct trusted_keys){&one, *one.key ? 1 : 0});
}

int zap_is_trusted(const struct zap *zap, const char *key)
{
    for (int i = 0; i < zap->n_keys; i++)
        if (!strcmp(zap->keys[i], key))
            return 1;
    return 0;
}

/* An unknown key is most often a person's new node: the line says what to do, but not a thousand times. */
static void log_refusal(struct zap *zap, const char *key, const char *address, uint64_t now_ns)
{
    zap->n_unlogged++;
    if (now_ns < zap->next_log_ns)
        return;
    log_line(LOG_WARNING, "refused a connection from %s: the key %s is not trusted here%s (%llu refused since the last such line)", address,
             key, zap->plaintext ? "" : "; if it is yours, add it with: hearth keys trust LIST KEY NAME",
             (unsigned long long)zap->n_unlogged);
    zap->next_log_ns = now_ns + LOG_EVERY_NS;
    zap->n_unlogged = 0;
}

/* 0: none is here. */
static int take_request(struct zap *zap, struct zap_request *r)
{
    for (r->n = 0;; r->n++) {
        char spare[FRAME_BYTES_MAX];
        int fits = r->n < FRAMES_MAX;
        int bytes = zmq_recv(zap->socket, fits ? r->frames[r->n] : spare, FRAME_BYTES_MAX - 1, ZMQ_DONTWAIT);
        if (bytes < 0)
            return 0;
        if (fits) {
            r->bytes[r->n] = bytes < FRAME_BYTES_MAX ? bytes : FRAME_BYTES_MAX - 1;
            r->frames[r->n][r->bytes[r->n]] = 0;
        }
        if (!socket_has_more(zap->socket)) {
            r->n += fits;
            return 1;
        }
    }
}

static void answer(struct zap *zap, const struct zap_request *r, int is_trusted)
{
    const char *user = is_trusted ? r->key : "";
    /* 300 lets the peer try again after its handshake deadline: the key may be trusted a minute later. After 400 ZeroMQ never would. */
    const struct {
        const void *bytes;
        size_t n;
    } frames[] = {{r->frames[ROUTING_ID], (size_t)r->bytes[ROUTING_ID]},
                  {"", 0},
                  {"1.0", 3},
                  {r->frames[REQUEST_ID], (size_t)r->bytes[REQUEST_ID]},
                  {is_trusted ? "200" : "300", 3},
                  {"", 0},
                  {user, strlen(user)},
                  {"", 0}};
    enum { N = sizeof frames / sizeof *frames };
    for (int i = 0; i < N; i++)
        zmq_send(zap->socket, frames[i].bytes, frames[i].n, ZMQ_DONTWAIT | (i + 1 < N ? ZMQ_SNDMORE : 0));
}

static void refuse(struct zap *zap, const struct zap_request *r, uint64_t now_ns)
{
    zap->refused++;
    log_refusal(zap, *r->key ? r->key : "(none)", r->frames[ADDRESS], now_ns);
    answer(zap, r, 0);
}

/* Lets in those that are trusted now, refuses those that have waited long enough. */
static void answer_waiting(struct zap *zap, uint64_t now_ns)
{
    int kept = 0;
    for (int i = 0; i < zap->n_waiting; i++) {
        struct zap_request *r = &zap->waiting[i];
        if (zap_is_trusted(zap, r->key))
            answer(zap, r, 1);
        else if (now_ns >= r->deadline_ns)
            refuse(zap, r, now_ns);
        else if (kept++ != i)
            zap->waiting[kept - 1] = *r;
    }
    zap->n_waiting = kept;
}

static void consider(struct zap *zap, struct zap_request *r, uint64_t now_ns)
{
    if (r->n <= MECHANISM || strcmp(r->frames[VERSION], "1.0"))
        return;
    int is_curve =
        !zap->plaintext && !strcmp(r->frames[MECHANISM], "CURVE") && r->n == CREDENTIALS + 1 && r->bytes[CREDENTIALS] == CURVE_KEY_BYTES;
    if (is_curve)
        CHECK(zmq_z85_encode(r->key, (const uint8_t *)r->frames[CREDENTIALS], CURVE_KEY_BYTES));
    if (zap->plaintext ? !strcmp(r->frames[MECHANISM], "NULL") : is_curve && zap_is_trusted(zap, r->key)) {
        answer(zap, r, 1);
    } else if (is_curve && zap->n_waiting < WAITING_MAX) {
        r->deadline_ns = now_ns + WAIT_NS;
        zap->waiting[zap->n_waiting++] = *r;
    } else {
        refuse(zap, r, now_ns);
    }
}

int zap_answer(struct zap *zap, uint64_t now_ns)
{
    struct zap_request r = {0};
    answer_waiting(zap, now_ns);
    for (int i = 0; i < ANSWERS_PER_CALL; i++) {
        if (!take_request(zap, &r))
            return 0;
        memset(r.key, 0, sizeof r.key);
        consider(zap, &r, now_ns);
    }
    return 1;
}
