#include "cli/stop_signal.h"

volatile sig_atomic_t stop_signal;

static void on_signal(int number)
{
    (void)number;
    stop_signal = 1;
}

void stop_signal_catch(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    struct sigaction hang_up;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (!sigaction(SIGHUP, NULL, &hang_up) && hang_up.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL);
    signal(SIGXFSZ, SIG_IGN);
}
