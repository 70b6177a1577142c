#include "coordinator/coordinator_options.h"

#include "coordinator/cluster.h"

#define AT(member) offsetof(struct coordinator_options, member)

const struct option_row coordinator_option_rows[] = {
    {"config", OPTION_TEXT, AT(config), .metavar = "FILE", .help = "INI file with these options; what the command line says wins"},
    {"model", OPTION_TEXT, AT(model), .metavar = "DIR", .help = "pack or vendor folder; only its small files and the manifest are read"},
    {"model-name", OPTION_TEXT, AT(model_name), .metavar = "NAME", .help = "what clients call the model; default: the folder's name"},
    {"nodes", OPTION_INT, AT(nodes), "3", 1, CLUSTER_NODES_MAX, .metavar = "N", .help = "how many nodes make the cluster complete"},
    {"layers", OPTION_TEXT, AT(layers), .metavar = "MAP",
     .help = "layer ranges by hand, \"desktop:0-6,laptop:6-10\"; default: split by bytes at legal cuts"},
    {"listen", OPTION_TEXT, AT(listen), "127.0.0.1:8080", .metavar = "ADDRESS:PORT", .help = "where people and programs ask (HTTP); IPv6 in brackets"},
    {"control", OPTION_TEXT, AT(control), "tcp://0.0.0.0:7600", .metavar = "ENDPOINT", .help = "where nodes report"},
    {"rows", OPTION_TEXT, AT(rows), "tcp://0.0.0.0:7601", .metavar = "ENDPOINT", .help = "where the last stage sends results"},
    {"advertise", OPTION_TEXT, AT(advertise), .metavar = "HOST",
     .help = "this machine's address as the nodes see it; needed when --rows binds 0.0.0.0 or [::]"},
    {"key", OPTION_TEXT, AT(key), .metavar = "FILE", .help = "this coordinator's key pair (hearth keys new FILE)"},
    {"trust", OPTION_TEXT, AT(trust), .metavar = "FILE",
     .help = "public keys of the nodes that may join (hearth keys trust FILE KEY NAME)"},
    {"plaintext", OPTION_FLAG, AT(plaintext),
     .help = "no keys and no encryption between the machines: whoever reaches the ports can read and send everything"},
    {"context", OPTION_INT, AT(context), "8192", 64, 1 << 24, .metavar = "N", .help = "positions of all conversations together"},
    {"sequences", OPTION_INT, AT(sequences), "8", 1, CLUSTER_SEQUENCES_MAX, .metavar = "N", .help = "answers that run at once"},
    {"queue", OPTION_INT, AT(queue), "32", 0, 4096, .metavar = "N", .help = "requests that wait; beyond it clients get 429"},
    {"chunk", OPTION_INT, AT(chunk), "0", 0, 512, .metavar = "N",
     .help = "rows of a prompt that travel together; 0: 64, up to 512 where experts stream (each is read once for all of them)"},
    {"deadline", OPTION_INT, AT(deadline_s), "3600", 1, 86400, .metavar = "SECONDS",
     .help = "an answer that takes longer ends with an error"},
    {"drain", OPTION_INT, AT(drain_s), "10", 0, 3600, .metavar = "SECONDS",
     .help = "after SIGTERM running answers may take this long to end"},
    {"api-key-file", OPTION_TEXT, AT(api_key_file), .metavar = "FILE",
     .help = "clients must send the key in this file; without it whoever reaches the address can ask"},
    {"hosts", OPTION_TEXT, AT(hosts), .metavar = "NAMES", .help = "further Host names that clients may use, separated by commas"},
    {"cors", OPTION_TEXT, AT(cors), .metavar = "ORIGINS", .help = "web origins whose pages may ask, separated by commas"},
    {"allow-logits", OPTION_FLAG, AT(allow_logits), .help = "serve POST /v1/logits, for checking"},
    {"log-level", OPTION_CHOICE, AT(log_level), "info", .choices = "error|warning|info|debug", .metavar = "LEVEL",
     .help = "what goes to the log"},
};
const int n_coordinator_option_rows = sizeof coordinator_option_rows / sizeof *coordinator_option_rows;
