#include "node/node_options.h"

#define AT(member) offsetof(struct node_options, member)

const struct option_row node_option_rows[] = {
    {"config", OPTION_TEXT, AT(config), .metavar = "FILE", .help = "INI file with these options; what the command line says wins"},
    {"model", OPTION_TEXT, AT(model), .metavar = "DIR", .help = "pack or vendor folder; only the files of this node's layers are read"},
    {"name", OPTION_TEXT, AT(name), .metavar = "NAME", .help = "this node's name, unique in the cluster"},
    {"coordinator", OPTION_TEXT, AT(coordinator), .metavar = "ENDPOINT", .help = "where the coordinator is, tcp://192.168.1.10:7600"},
    {"coordinator-key", OPTION_TEXT, AT(coordinator_key), .metavar = "KEY", .help = "the coordinator's public key; no other is believed"},
    {"key", OPTION_TEXT, AT(key), .metavar = "FILE", .help = "this node's key pair (hearth keys new FILE)"},
    {"bind", OPTION_TEXT, AT(bind), "tcp://0.0.0.0:7602", .metavar = "ENDPOINT", .help = "where rows come in"},
    {"advertise", OPTION_TEXT, AT(advertise), .metavar = "HOST",
     .help = "this machine's address as its neighbours see it; needed when --bind is 0.0.0.0 or [::]"},
    {"plaintext", OPTION_FLAG, AT(plaintext),
     .help = "no keys and no encryption between the machines: whoever reaches the ports can read and send everything"},
    {"layers", OPTION_TEXT, AT(layers), .metavar = "BEGIN-END", .help = "own no other layers than these; any other assignment is refused"},
    {"threads", OPTION_INT, AT(threads), "0", 0, 256, .metavar = "N", .help = "threads; 0: one per core"},
    {"memory", OPTION_SIZE, AT(memory), "0", 0, 1e15, .metavar = "SIZE", .help = "memory limit, e.g. 12G; experts that do not fit stream from the drive; 0: nine tenths of what is free"},
    EXPERT_OPTION_ROWS(struct node_options, experts),
    {"isa", OPTION_CHOICE, AT(isa), "auto", .choices = "auto|scalar|avx2|avx512", .metavar = "ISA",
     .help = "instruction set of the kernels; results do not depend on it"},
    {"metrics", OPTION_TEXT, AT(metrics), .metavar = "ADDRESS:PORT",
     .help = "where GET /metrics is served (Prometheus), or off; default: 127.0.0.1:7603 if it is free"},
    {"slow-unit-ms", OPTION_INT, AT(slow_unit_ms), "0", 0, 10000, .metavar = "MS",
     .help = "for tests: every unit of work takes this much longer"},
    {"log-level", OPTION_CHOICE, AT(log_level), "info", .choices = "error|warning|info|debug", .metavar = "LEVEL",
     .help = "what goes to the log"},
};
const int n_node_option_rows = sizeof node_option_rows / sizeof *node_option_rows;
