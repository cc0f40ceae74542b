/* Stops the thread that is about to rename a certain file, for ever: a moment at which a broker can be killed.
 *
 * PAUSE_AT   how the path of the file ends, and
 * PAUSE_IN   what is in it
 * PAUSE_SAID the file that is made then */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int rename(const char *from, const char *to) {
    static int (*next)(const char *, const char *);
    const char *end = getenv("PAUSE_AT");
    const char *part = getenv("PAUSE_IN");
    const char *said = getenv("PAUSE_SAID");
    if (next == NULL) {
        *(void **)&next = dlsym(RTLD_NEXT, "rename");
    }
    if (end != NULL && part != NULL && said != NULL) {
        size_t length = strlen(from);
        if (length >= strlen(end) && strcmp(from + length - strlen(end), end) == 0 && strstr(from, part) != NULL) {
            close(open(said, O_WRONLY | O_CREAT, 0600));
            for (;;) {
                pause();
            }
        }
    }
    return next(from, to);
}
