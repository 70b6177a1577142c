/* The processes that spoke on the coordinator's control socket, by a number that no two of them ever share. Bounded: of one node's key the
 * longest silent goes first, so that its restarts cannot push the others out. */
#ifndef HEARTH_PROTO_PEER_TABLE_H
#define HEARTH_PROTO_PEER_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"
#include "proto/send_queue.h"
#include "proto/transport.h"

enum {
    PEERS_MAX = 64, /* connections of nodes that are remembered: four for each of STAGES_MAX */
    PEERS_PER_KEY = 8,
};
_Static_assert(PEERS_MAX >= 4 * STAGES_MAX, "every stage may restart");

struct node_peer {
    int number; /* at least PEER_FIRST_NODE; 0: free */
    uint8_t routing_id[ROUTING_ID_BYTES_MAX];
    size_t routing_id_bytes;
    char key[PEER_KEY_BYTES];
    uint64_t last_ns;
    struct send_queue queue; /* what waits for it */
};

/* Zero-initialise. */
struct peer_table {
    struct node_peer peers[PEERS_MAX];
    int n_ever;
};

/* NULL: nobody has that number, or no longer. */
struct node_peer *peer_table_by_number(struct peer_table *table, int number);

/* The peer of a routing id (at most ROUTING_ID_BYTES_MAX), known or new; a new one may take the place of another, whose queue is lost.
 * key: "" without keys. NULL: the id belongs to another key. */
struct node_peer *peer_table_of(struct peer_table *table, const void *routing_id, size_t bytes, const char *key, uint64_t now_ns);

void peer_table_clear(struct peer_table *table);

#endif
