/* One request and its sequence: the token log, what has been sent, what is known to have passed each stage. */
#ifndef HEARTH_COORDINATOR_REQUEST_H
#define HEARTH_COORDINATOR_REQUEST_H

#include "coordinator/cluster.h"
#include "model/token_counts.h"

enum request_state { REQUEST_QUEUED, REQUEST_OPENING, REQUEST_PREFILL, REQUEST_DECODE, REQUEST_DONE, REQUEST_FAILED, REQUEST_CANCELLED, N_REQUEST_STATES };

struct request {
    uint64_t id; /* also the sequence's number */
    enum request_state state;
    struct cluster_request ask; /* prompt and bias are our own copies */
    int *tokens;                /* [n_prompt + max_new] prompt, then answer */
    uint64_t *hashes;           /* [n_prompt + max_new + 1] rolling hash of the ids below a position */
    int n_tokens, positions;    /* positions promised at the stages */
    struct token_counts counts;
    uint64_t deadline_ns, started_ns, moved_ns; /* moved: the last time anything of it was heard or sent */
    unsigned opened;                /* bit per stage */
    uint32_t generation;
    uint32_t cut_from; /* goes with the next step; NO_CUT */
    int sent;          /* rows given to stage 0 */
    int left[CLUSTER_NODES_MAX]; /* rows that left each stage */
    int n_new;
    int n_redone; /* how often rows had to be sent again */
    int n_logits, n_draft_logits; /* teacher-forced: rows handed out */
    struct request *next; /* in the order of arrival */
};

struct request *request_new(uint64_t id, const struct cluster_request *ask, int positions, int n_tokens, uint64_t now_ns, uint64_t deadline_ns);
void request_free(struct request **request);

/* CHECKs that the state table allows it. */
void request_set_state(struct request *request, enum request_state state);

/* Appends an answer token to the log. */
void request_append(struct request *request, int token);

static inline int request_is_running(const struct request *r)
{
    return r->state == REQUEST_OPENING || r->state == REQUEST_PREFILL || r->state == REQUEST_DECODE;
}

/* Rows between the coordinator and the end of the last of n_stages stages. */
static inline int request_rows_in_flight(const struct request *r, int n_stages)
{
    return r->sent - r->left[n_stages - 1];
}

/* enum want bits that choosing the next token takes: the candidates are enough where no id outside them can be chosen. */
uint32_t request_want(const struct request *request);

#endif
