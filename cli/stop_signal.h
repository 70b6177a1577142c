/* Long commands that leave nothing half done behind: the first signal asks them to stop, a second one kills as usual. */
#ifndef HEARTH_CLI_STOP_SIGNAL_H
#define HEARTH_CLI_STOP_SIGNAL_H

#include <signal.h>

extern volatile sig_atomic_t stop_signal; /* set by SIGINT, SIGTERM or SIGHUP */

/* A hang-up that is ignored (nohup) stays ignored. Also makes a file size limit an error with a sentence, not a death. */
void stop_signal_catch(void);

#endif
