#include "proto/peer_table.h"

#include <string.h>

#include "common/check.h"

struct node_peer *peer_table_by_number(struct peer_table *table, int number)
{
    if (number < PEER_FIRST_NODE)
        return NULL;
    struct node_peer *peer = &table->peers[(number - PEER_FIRST_NODE) % PEERS_MAX];
    return peer->number == number ? peer : NULL;
}

/* Where a new peer goes: the longest silent entry of its key when that key has many, else a free one, else the longest silent of all. */
static struct node_peer *victim(struct peer_table *table, const char *key)
{
    struct node_peer *oldest = NULL, *oldest_of_key = NULL, *free_one = NULL;
    int n_of_key = 0;
    for (struct node_peer *p = table->peers; p < table->peers + PEERS_MAX; p++) {
        if (!p->number) {
            free_one = p;
            continue;
        }
        if (!oldest || p->last_ns < oldest->last_ns)
            oldest = p;
        if (*key && !strcmp(p->key, key)) {
            n_of_key++;
            if (!oldest_of_key || p->last_ns < oldest_of_key->last_ns)
                oldest_of_key = p;
        }
    }
    return n_of_key >= PEERS_PER_KEY ? oldest_of_key : free_one ? free_one : oldest;
}

static struct node_peer *by_routing_id(struct peer_table *table, const void *routing_id, size_t bytes)
{
    for (struct node_peer *p = table->peers; p < table->peers + PEERS_MAX; p++)
        if (p->number && p->routing_id_bytes == bytes && !memcmp(p->routing_id, routing_id, bytes))
            return p;
    return NULL;
}

static struct node_peer *add(struct peer_table *table, const void *routing_id, size_t bytes, const char *key)
{
    struct node_peer *peer = victim(table, key);
    send_queue_clear(&peer->queue);
    CHECK(bytes <= sizeof peer->routing_id);
    /* the place in the low part, a number that has never been used in the high one */
    int turn = table->n_ever++ & 0xffffff;
    *peer = (struct node_peer){.number = PEER_FIRST_NODE + (int)(peer - table->peers) + PEERS_MAX * turn, .routing_id_bytes = bytes};
    peer->queue.bytes_max = CONTROL_QUEUE_BYTES;
    memcpy(peer->routing_id, routing_id, bytes);
    memcpy(peer->key, key, strlen(key) + 1);
    return peer;
}

struct node_peer *peer_table_of(struct peer_table *table, const void *routing_id, size_t bytes, const char *key, uint64_t now_ns)
{
    struct node_peer *peer = by_routing_id(table, routing_id, bytes);
    if (peer && strcmp(peer->key, key))
        return NULL;
    if (!peer)
        peer = add(table, routing_id, bytes, key);
    peer->last_ns = now_ns;
    return peer;
}

void peer_table_clear(struct peer_table *table)
{
    for (struct node_peer *p = table->peers; p < table->peers + PEERS_MAX; p++)
        send_queue_clear(&p->queue);
    memset(table, 0, sizeof *table);
}
