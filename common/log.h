/* One line per event on stderr: level, then a sentence. Safe from any thread. */
#ifndef HEARTH_COMMON_LOG_H
#define HEARTH_COMMON_LOG_H

enum log_level { LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG };

/* Lines above this level are dropped. Default: LOG_WARNING for a command line tool. Set once, before threads start. */
void log_set_level(enum log_level level);
/* The same by name: "error", "warning", "info", "debug"; other names change nothing. */
void log_set_level_by_name(const char *name);
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
